# SPDX-License-Identifier: Apache-2.0
"""`symmshim tune` on simulated GPUs: what it writes and how it ends; tune.c has what it chooses.

Usage: tools_tune.py SYMMSHIM FAKE_SHIM SOURCE_ROOT SIMULATION
"""
import os
import re
import sys
import unittest

from tools_base import ToolTest

SIM = os.path.abspath(sys.argv[4])
KINDS = ['all_gather', *(f'{kind} {dtype}' for dtype in ('bf16', 'fp32')
                         for kind in ('reduce_scatter sum', 'reduce_scatter avg', 'all_reduce sum'))]


class Tune(ToolTest):
    def tune(self, *args, **env):
        return self.run_tool('tune', '--ranks', '2', '--libs', SIM, '--rounds', '3', '--min-bytes', '16K',
                             '--max-bytes', '64K', *args, TMPDIR=self.folder, **env)

    def test_the_file(self):
        path = os.path.join(self.folder, 'tuned.conf')
        done = self.tune('--out', path)
        self.expect(done, 0, out=f'{path}: ')
        self.assertRegex(done.stdout, r': \d+ rules?, (8|16|24|32) CTAs; of simulated GPUs, so it means nothing\n')
        self.expect(self.run_tool('check', path), 0, out='ok')
        self.assertEqual(os.listdir(self.folder), ['tuned.conf'])
        with open(path, encoding='utf-8') as file:
            text = file.read()
        self.assertIn('# Measured on 2 x simulated GPU with NCCL 2.28.9.\n# The GPUs were simulated', text)
        self.assertEqual(re.findall(r'\n#\n# (.*)\n# +bytes', text), KINDS)
        self.assertRegex(text, r'\n\[shim\]\nchild_min_ctas = (8|16|24|32)\nchild_max_ctas = 64\n')
        figure = r'(\d+\.\d \(\d+\.\d\d\)|-)'
        rows = re.findall(
            r'\n# +(16|64) KiB +[\d.]+ \+- *[\d.]+' + f' +{figure}' * 6 + r'  (plain|window|staged)', text)
        self.assertEqual(len(rows), 2 * len(KINDS), text)
        for row in rows:  # all calls went the way that was meant, or there would be no figure
            self.assertNotIn('-', row[5:7])
        self.assertEqual(sum(row[1:5] == ('-',) * 4 for row in rows), 4)  # averages by hand

    def test_every_choice_has_a_rule(self):
        done = self.tune()
        self.expect(done, 0, out='[shim]')
        kind, policy = None, self.write('tuned.conf', done.stdout)
        for line in done.stdout.splitlines():
            head, row = re.match(r'# (.*)$', line), re.match(r'# +(\d+) KiB .*  (plain|window|staged)$', line)
            if row:
                op, *words = kind.split()
                redop, dtype = words or (None, 'bf16')
                args = ['--op', op, '--dtype', dtype, '--bytes', row[1] + 'K', '--nranks', '2', '--nccl', '2.28.9']
                answer = self.run_tool('explain', '--policy', policy, *args, *(('--redop', redop) if redop else ()))
                self.assertEqual(answer.returncode, 0, answer)
                self.assertIn(row[2], answer.stdout, line)
            elif head and head[1] in KINDS:
                kind = head[1]

    def test_a_call_that_does_not_go_symmetric_is_no_candidate(self):
        done = self.tune(SIM_FAIL='ncclCommSplit:*=2')
        self.expect(done, 0, out='# Nothing was faster than stock.')
        self.assertEqual(self.candidates(done.stdout, 'all_gather'), {('-', '-')})

    def candidates(self, text, kind):
        """What the table has for calls through the shim and through slots."""
        rows = text.split(f'\n# {kind}\n')[1].split('\n#\n')[0]
        found = set(re.findall(r' (\S+|\S+ \(\S+\)) +(\S+|\S+ \(\S+\))  (?:plain|window|staged)\n', rows + '\n'))
        self.assertTrue(found, text)
        return found

    def test_failures(self):
        path = self.write('tuned.conf', 'old\n')
        done = self.tune('--out', path, '--timeout', '1', SIM_DELAY='ncclAllReduce:9@rank1=60000')
        self.expect(done, 1, err='symmshim tune: the ranks hang at all_reduce sum bf16 of 16 KiB')
        with open(path, encoding='ascii') as file:
            self.assertEqual(file.read(), 'old\n')
        self.expect(self.tune('--out', '/nonexistent/policy.conf'), 2, err='/nonexistent/policy.conf: No such file')
        # What is no plain file is not replaced by one.
        os.symlink('/dev/full', os.path.join(self.folder, 'full'))
        self.expect(self.tune('--out', 'full'), 2, err='symmshim tune: full: No space left on device\n')
        self.assertEqual(sorted(os.listdir(self.folder)), ['full', 'tuned.conf'])
        self.assertTrue(os.path.islink(os.path.join(self.folder, 'full')))

    def test_wrong_use(self):
        if not os.path.exists('/dev/nvidia0'):
            self.expect(self.run_tool('tune'), 1, err='two GPUs are needed, and 0 can be seen')
        self.expect(self.run_tool('tune', 'file'), 2, err="unexpected argument 'file'")
        self.expect(self.tune('--max-bytes', '8K'), 2, err='--min-bytes is above --max-bytes')
        self.expect(self.tune('--factor', '1'), 2, err='--factor wants a number from 2 to 1024')


if __name__ == '__main__':
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
