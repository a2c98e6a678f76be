# SPDX-License-Identifier: Apache-2.0
"""Counts tests from Meson's log, one by one.

Meson sees a program; a cmocka program, or one that closes with "N passed, N failed, N skipped", holds many tests, and
when it skips some of them it looks like a pass to Meson. So such closing lines are counted where there are any, else
the program is one test.
"""
import json
import re
import sys

CLOSING = {"passed": r"\[  PASSED  \] (\d+) test|^(\d+) passed, \d+ failed",
           "failed": r"\[  FAILED  \] (\d+) test|^\d+ passed, (\d+) failed",
           "skipped": r"\[  SKIPPED \] (\d+) test|^\d+ passed, \d+ failed, (\d+) skipped"}


def counts_of(test):
    output = (test.get("stdout") or "") + "\n" + (test.get("stderr") or "")
    counts = {kind: sum(int(a or b) for a, b in re.findall(pattern, output, re.MULTILINE))
              for kind, pattern in CLOSING.items()}
    result = test["result"]
    if result == "SKIP":
        return {"passed": 0, "failed": 0, "skipped": 1}
    if result not in ("OK", "EXPECTEDFAIL"):
        return {**counts, "failed": max(1, counts["failed"])}
    return counts if sum(counts.values()) else {"passed": 1, "failed": 0, "skipped": 0}


def main():
    total = {"passed": 0, "failed": 0, "skipped": 0}
    with open(sys.argv[1], encoding="utf-8") as log:
        for line in log:
            test = json.loads(line)
            counts = counts_of(test)
            for kind, count in counts.items():
                total[kind] += count
            if counts["failed"] or counts["skipped"]:
                print(f"{test['name']}: {counts['failed']} failed, {counts['skipped']} skipped")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
