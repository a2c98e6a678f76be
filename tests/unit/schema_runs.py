# SPDX-License-Identifier: Apache-2.0
"""Every line of the logs of real runs, on the simulation, against the schema of the audit log.

Usage: schema_runs.py SOURCE_ROOT BUILD_ROOT

Exit status 77 where there is no validator.
"""
import json
import os
import subprocess
import sys
import tempfile

ROOT, BUILD = (os.path.abspath(path) for path in sys.argv[1:3])
sys.path.insert(0, os.path.join(ROOT, 'tests/preload'))
import schema  # noqa: E402 pylint: disable=wrong-import-position

TOOL = os.path.join(BUILD, 'tools/symmshim')
RANKS = [os.path.join(BUILD, 'tests/sim/ranks'), '-n', '2', '-t', '60', '--']
JOB = [*RANKS, os.path.join(BUILD, 'tests/preload/job'), '--op', 'all_gather,reduce_scatter,all_reduce', '--calls', '9']
DEMO = [os.path.join(BUILD, 'tools/demo/symmshim-demo'), '--steps', '2']
POLICY = '[shim]\naudit = call\nagree_us = 5000000\nchild_memory = 16M\nwindow_memory = 1M\n' \
         '[arena]\ncallers = *\nmin_bytes = 1M\n[rule all]\npath = window\nrewrite = post_scale\n'

# name, options of `symmshim run`, command, and what must occur, as "event" or "event:word"
RUNS = [
    ('demo', [], DEMO, 'start comm:ready window call:window summary'),
    ('job', [], [*JOB, '--redop', 'avg'], 'start comm:ready window call:window call:plain summary'),
    ('job, in bf16', [], [*JOB, '--redop', 'avg', '--dtype', 'bf16'], 'call:window'),
    ('job, differing offsets', [], [*JOB, '--diverge', 'offset'], 'call:plain summary'),
    ('job, other communicators', [], [*JOB, '--derive', 'twins', '--init', 'grouped'], 'comm:plain comm:ready'),
    ('job, captured', [], [*JOB, '--capture', '2'], 'call:window'),
    ('job, watched', ['--audit-only'], JOB, 'start:audit comm:plain call:plain summary'),
]


def words_of(line):
    event = line['event']
    return {event} | {f'{event}:{line[key]}' for key in ('state', 'path', 'mode') if key in line}


def check(folder, options, command, wanted):
    """Returns what is wrong, and the number of lines."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(('SYMMSHIM', 'NCCL_', 'SIM_'))}
    environment['LD_LIBRARY_PATH'] = os.path.join(BUILD, 'tests/sim')
    log, policy = os.path.join(folder, 'log.%p'), os.path.join(folder, 'policy')
    with open(policy, 'w', encoding='ascii') as file:
        file.write(POLICY)
    done = subprocess.run([TOOL, 'run', *options, '--policy', policy, '--audit', log, '--', *command], env=environment,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        return [f'status {done.returncode}: {done.stderr}'], 0
    found, problems, lines = set(), [], 0
    for name in sorted(set(os.listdir(folder)) - {'policy'}):
        with open(os.path.join(folder, name), encoding='utf-8') as file:
            for line in map(json.loads, file):
                lines += 1
                problems += filter(None, [schema.problem(line)])
                found |= words_of(line)
    missing = set(wanted.split()) - found
    return problems + ([f'no {" and no ".join(sorted(missing))} in it'] if missing else []), lines


def main():
    if schema.MISSING:
        print(f'SKIP: {schema.MISSING}')
        return 77
    failed = 0
    for name, options, command, wanted in RUNS:
        with tempfile.TemporaryDirectory(prefix='symmshim-test-') as folder:
            problems, lines = check(folder, options, command, wanted)
        print(f'{name}: {lines} lines: {"FAIL" if problems else "ok"}')
        print(''.join(f'    {problem}\n' for problem in problems[:5]), end='')
        failed += bool(problems)
    print(f'{len(RUNS) - failed} passed, {failed} failed')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
