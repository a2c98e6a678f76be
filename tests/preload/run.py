# SPDX-License-Identifier: Apache-2.0
"""The shim under jobs. `run.py ... --list` names the cases; `run.py ... --case same/ops_2_fp32` runs one.

Exit status: 0 all passed, 1 a case failed, 77 all were skipped.
"""

import argparse
import os
import sys
import time

import harness

# pylint: disable=unused-import
import cases_audit  # noqa: F401
import cases_calls  # noqa: F401
import cases_entries  # noqa: F401
import cases_faults  # noqa: F401
import cases_forecast  # noqa: F401
import cases_graphs  # noqa: F401
import cases_groups  # noqa: F401
import cases_guests  # noqa: F401
import cases_hostile  # noqa: F401
import cases_ipc  # noqa: F401
import cases_life  # noqa: F401
import cases_matrix  # noqa: F401
import cases_memory  # noqa: F401
import cases_plain  # noqa: F401
import cases_process  # noqa: F401
import cases_staging  # noqa: F401
import cases_table  # noqa: F401


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("shim", "no-agreement", "job", "plugin", "host", "probe", "cycles", "descriptors", "scenes", "staging", "ipc",
                 "memory-table", "ranks", "sim", "matrix"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--runtime", action="append", default=[], help="a sanitizer's runtime, to be preloaded first")
    parser.add_argument("--seconds", type=int, default=60, help="how long a job may take that is not meant to hang")
    parser.add_argument("--slower", type=int, default=1, help="make all times that cases set longer by this factor")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first case that fails")
    parser.add_argument("--group", help="only the cases of this group")
    parser.add_argument("--case", action="append", help="only this case")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    return parser.parse_args()


def run(name, function):
    start = time.monotonic()
    try:
        function()
        verdict = "ok"
    except harness.Skip as reason:
        verdict = f"SKIP: {reason}"
    except Exception as error:  # a case that breaks is a case that fails
        verdict = f"FAIL: {type(error).__name__ + ': ' if not isinstance(error, harness.Failure) else ''}{error}"
    print(f"{name} ({time.monotonic() - start:.2f} s): {verdict}", flush=True)
    return verdict[:4]


def main():
    options = arguments()
    for name in ("shim", "no_agreement", "job", "plugin", "host", "probe", "cycles", "descriptors", "scenes", "staging", "ipc",
                 "memory_table", "ranks", "sim", "matrix"):
        setattr(harness.setup, name, os.path.abspath(getattr(options, name)))
    harness.setup.runtime = " ".join(options.runtime)
    harness.setup.seconds = options.seconds
    harness.setup.slower = options.slower
    wanted = {name: function for name, (group, function) in harness.cases.items()
              if options.group in (None, group) and (not options.case or name in options.case)}
    if options.list:
        print("\n".join(wanted))
        return 0
    verdicts = []
    for name, function in wanted.items():
        verdicts.append(run(name, function))
        if options.fail_fast and verdicts[-1] == "FAIL":
            break
    failed, skipped = verdicts.count("FAIL"), verdicts.count("SKIP")
    # Where a case is many, each counts.
    passed = len(verdicts) - failed - skipped + harness.further["passed"]
    failed += harness.further["failed"]
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    if failed or not verdicts:
        return 1
    return 77 if skipped == len(verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
