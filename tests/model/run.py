#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks one model with Spin: run.py {holds|fails} MODEL [-DNAME[=VALUE]...]

With --loops first among the -D flags, looks for endless loops instead of bad ends.
Spin and its verifier exit with 0 whatever they find, so the "errors:" line is read.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

SKIP = 77


def verify(model, flags, folder):
    loops = '--loops' in flags
    defines = [flag for flag in flags if flag != '--loops']
    compiler = os.environ.get('CC', 'gcc').split()
    kind = '-DNP' if loops else '-DSAFETY'

    def step(command):
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f'{" ".join(command)}:\n{done.stdout}')
        return done.stdout

    step(['spin', '-a', *defines, model])
    # Unoptimized: for runs this short, the compiler takes longer than what it saves.
    step([*compiler, '-w', '-O0', kind, '-DMEMLIM=1900', '-o', 'pan', 'pan.c'])
    return step(['./pan', '-m100000', *(['-l'] if loops else [])])


def main():
    wanted, model, flags = sys.argv[1], os.path.abspath(sys.argv[2]), sys.argv[3:]
    if not shutil.which('spin'):
        print('skipped: no spin')
        return SKIP
    with tempfile.TemporaryDirectory() as folder:
        output = verify(model, flags, folder)
    print(output)
    errors = re.search(r'errors: (\d+)', output)
    if not errors:
        print('the verifier did not say what it found')
        return 1
    if wanted == 'fails':
        return int(errors[1]) == 0
    incomplete = 'Search not completed' in output or 'max search depth too small' in output
    return int(errors[1]) != 0 or incomplete


if __name__ == '__main__':
    sys.exit(main())
