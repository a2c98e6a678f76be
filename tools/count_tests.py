# SPDX-License-Identifier: Apache-2.0
"""count_tests.py STAGE=LOG...: counts tests from Meson's logs, one by one.

Meson sees a program; a cmocka program, or one that closes with "N passed, N failed, N skipped", holds many tests, and
when it skips some of them it looks like a pass to Meson. So such closing lines are counted where there are any, else
the program is one test. A stage without a log did not come to its tests, which is a failure.
"""
import collections
import json
import re
import sys

CLOSING = {"passed": r"\[  PASSED  \] (\d+) test|^(\d+) passed, \d+ failed",
           "failed": r"\[  FAILED  \] (\d+) test|^\d+ passed, (\d+) failed",
           "skipped": r"\[  SKIPPED \] (\d+) test|^\d+ passed, \d+ failed, (\d+) skipped"}
REASON = re.compile(r"(?:SKIP:|skipped:|\.\.\. skipped) *(.+)")


def output_of(test):
    return (test.get("stdout") or "") + "\n" + (test.get("stderr") or "")


def counts_of(test):
    counts = {kind: sum(int(a or b) for a, b in re.findall(pattern, output_of(test), re.MULTILINE))
              for kind, pattern in CLOSING.items()}
    result = test["result"]
    if result == "SKIP":
        return {"passed": 0, "failed": 0, "skipped": max(1, counts["skipped"])}
    if result not in ("OK", "EXPECTEDFAIL"):
        return {**counts, "failed": max(1, counts["failed"])}
    return counts if sum(counts.values()) else {"passed": 1, "failed": 0, "skipped": 0}


def reasons_of(test):
    """Why tests were skipped, each reason once: what the lines say that have the word, else the last line."""
    found = REASON.findall(output_of(test)) or output_of(test).strip().splitlines()[-1:]
    reasons = collections.Counter(reason.strip().strip("'\"") for reason in found)
    return "; ".join(f"{reason} ({times} times)" if times > 1 else reason for reason, times in reasons.items())


def tests_of(path):
    try:
        with open(path, encoding="utf-8") as log:
            return [json.loads(line) for line in log]
    except OSError:
        return []


def main():
    total = collections.Counter()
    for argument in sys.argv[1:]:
        stage, _, path = argument.partition("=")
        tests = tests_of(path)
        if not tests:
            print(f"{stage}: no tests were run")
            total["failed"] += 1
        for test in tests:
            counts = counts_of(test)
            total.update(counts)
            if counts["failed"]:
                print(f"{stage}: {test['name']}: {counts['failed']} failed")
            if counts["skipped"]:
                print(f"{stage}: {test['name']}: {counts['skipped']} skipped: {reasons_of(test) or 'no reason given'}")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
