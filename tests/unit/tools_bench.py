# SPDX-License-Identifier: Apache-2.0
"""`symmshim bench` on simulated GPUs: what is printed and drawn, how it ends, not what is measured.

Usage: tools_bench.py SYMMSHIM FAKE_SHIM SOURCE_ROOT SIMULATION
"""
import glob
import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest
import xml.dom.minidom

from tools_base import TOOL, ToolTest

SIM = os.path.abspath(sys.argv[4])
POLICY = '[arena]\ncallers = libc10_cuda.so\nmax_bytes = 1G\n\n[rule all]\nmin_bytes = 16K\npath = window\nrewrite = post_scale\n'


class Bench(ToolTest):
    def bench(self, *args, **env):
        return self.run_tool('bench', '--ranks', '2', '--libs', SIM, '--rounds', '3', '--min-bytes', '4K',
                             '--max-bytes', '16K', *args, TMPDIR=self.folder, **env)

    def left_over(self):
        return glob.glob(os.path.join(self.folder, 'symmshim-*'))

    def json_of(self, *args, **env):
        done = self.bench('--json', *args, **env)
        self.expect(done, 0, out='{')
        return json.loads(done.stdout)

    def test_table(self):
        done = self.bench('--ops', 'all_gather', '--dtypes', 'bf16')
        self.expect(done, 0, out='2 x simulated GPU, NCCL 2.28.9')
        self.assertIn('The GPUs are simulated: these times mean nothing.', done.stdout)
        self.assertRegex(done.stdout, r'\nall_gather bf16\n +bytes +stock us SMs +shim us SMs')
        self.assertRegex(done.stdout, r'\n +4 KiB .* plain \(policy\)\n +16 KiB .* plain \(policy\)\n')
        self.assertEqual(self.left_over(), [])

    def test_json(self):
        answer = self.json_of('--policy', self.write('policy.conf', POLICY), '--dtypes', 'bf16', '--copy-engine')
        head = {'schema': 1, 'gpu': 'simulated GPU', 'simulation': True, 'nranks': 2, 'nccl': '2.28.9', 'rounds': 3,
                'busy': False}
        self.assertEqual({key: answer[key] for key in head}, head)
        kinds = {(case['op'], case['redop'], case['bytes']): case for case in answer['cases']}
        self.assertEqual(set(kinds), {(*kind, size) for size in (4096, 16384) for kind in (
            ('all_gather', None), ('reduce_scatter', 'sum'), ('reduce_scatter', 'avg'), ('all_reduce', 'sum'))})
        for (op, redop, size), case in kinds.items():
            self.assertTrue(case['path'].startswith('plain' if size < 16384 else 'window'), case)
            self.assertEqual(len(case['windows']), {'all_gather': 2}.get(op, 0 if redop == 'avg' else 1))
            for way in (case['stock'], case['shim'], *case['windows']):
                self.assertGreater(way['us'], 0)
                self.assertGreaterEqual(way['us_spread'], 0)
                self.assertAlmostEqual(way['ratio'], case['stock']['us'] / way['us'], delta=0.001 * way['ratio'])
                self.assertIsNone(way['sms'])  # the simulation has no such log
                part = 2 * size if op == 'all_reduce' else size
                self.assertAlmostEqual(way['bus_gb_s'], part / 2 / way['us'] / 1e3, delta=0.001 * way['bus_gb_s'])
            self.assertEqual([window['copy_engine'] for window in case['windows']],
                             [False, True][:len(case['windows'])])

    def test_what_is_measured_can_be_chosen(self):
        answer = self.json_of('--ops', 'reduce_scatter', '--redops', 'avg', '--dtypes', 'fp32', '--factor', '2')
        self.assertEqual([(case['op'], case['redop'], case['dtype'], case['bytes']) for case in answer['cases']],
                         [('reduce_scatter', 'avg', 'fp32', size) for size in (4096, 8192, 16384)])

    def test_plot(self):
        plot = os.path.join(self.folder, 'plot.svg')
        done = self.bench('--plot', plot, '--ops', 'all_gather,all_reduce', '--dtypes', 'fp32')
        self.expect(done, 0, out='all_gather fp32')
        svg = xml.dom.minidom.parse(plot).documentElement
        self.assertEqual(svg.tagName, 'svg')
        texts = [''.join(child.data for child in text.childNodes) for text in svg.getElementsByTagName('text')]
        for wanted in ('2 x simulated GPU, NCCL 2.28.9', 'simulated: these times mean nothing', 'stock NCCL',
                       'through the shim', 'windows, 16 CTAs', 'all_gather fp32: speed against stock NCCL',
                       'all_reduce sum fp32: bus bandwidth, GB/s', '4 KiB', '16 KiB'):
            self.assertIn(wanted, texts)
        width, height = (float(svg.getAttribute(name)) for name in ('width', 'height'))
        numbers = [(float(x), float(y)) for path in svg.getElementsByTagName('path')
                   for x, y in re.findall(r'[ML](-?[\d.]+) (-?[\d.]+)', path.getAttribute('d'))]
        numbers += [(float(text.getAttribute('x')), float(text.getAttribute('y')))
                    for text in svg.getElementsByTagName('text')]
        self.assertGreater(len(numbers), 40)
        for x, y in numbers:
            self.assertTrue(0 <= x <= width and 0 <= y <= height, (x, y))
        self.expect(self.bench('--plot', '/nonexistent/plot.svg', '--ops', 'all_gather', '--dtypes', 'fp32'), 1,
                    out='all_gather', err='symmshim bench: /nonexistent/plot.svg: No such file')

    def test_a_hang_is_named(self):
        done = self.bench('--timeout', '1', '--ops', 'all_gather', '--dtypes', 'bf16',
                          SIM_DELAY='ncclAllGather:20@rank1=60000')
        self.expect(done, 1, err='symmshim bench: the ranks hang at all_gather bf16 of 4 KiB, ')
        self.assertRegex(done.stderr,
                         r', (stock NCCL|through the shim|windows, 16 CTAs): more than 1 s for it \(--timeout\)')
        self.assertEqual(self.left_over(), [])

    def test_a_hang_of_the_set_up_is_named(self):
        done = self.bench('--timeout', '1', SIM_DELAY='ncclCommInitRank:1@rank1=60000')
        self.expect(done, 1, err='symmshim bench: the ranks hang while they set up their communicators: 1 s without')

    def test_a_failing_call_is_named(self):
        done = self.bench('--ops', 'all_gather', SIM_FAIL='ncclAllGather:5@rank1=3')
        self.expect(done, 1, err='symmshim bench: rank 1: ')
        self.assertEqual(self.left_over(), [])

    def test_a_killed_rank_is_named(self):
        process = self.start()
        ranks = self.ranks_of(process)
        os.kill(ranks[1], signal.SIGKILL)
        _, err = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 1)
        self.assertRegex(err, r'symmshim bench: rank \d was ended by signal 9 \(Killed\)')

    def start(self):
        return subprocess.Popen([TOOL, 'bench', '--ranks', '2', '--libs', SIM, '--rounds', '51'],
                                env={**self.env, 'TMPDIR': self.folder}, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def ranks_of(self, process):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with open(f'/proc/{process.pid}/task/{process.pid}/children', encoding='ascii') as file:
                ranks = [int(word) for word in file.read().split()]
            if len(ranks) == 2 and self.left_over():
                time.sleep(0.3)
                return ranks
            time.sleep(0.02)
        process.kill()
        return self.fail('no ranks')

    def test_interrupt_leaves_nothing(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = self.start()
            ranks = self.ranks_of(process)
            process.send_signal(number)
            _, err = process.communicate(timeout=20)
            self.assertEqual((process.returncode, err), (1, 'symmshim bench: interrupted\n'))
            self.assertEqual(self.left_over(), [])
            for rank in ranks:
                self.assertFalse(os.path.exists(f'/proc/{rank}'))

    def test_busy(self):
        """The simulation has no such kernel."""
        answer = self.json_of('--busy', '--ops', 'all_gather', '--dtypes', 'bf16')
        self.assertTrue(answer['busy'])
        self.assertIsNone(answer['cases'][0]['shim']['busy_slowdown'])
        done = self.bench('--busy', '--ops', 'all_gather', '--dtypes', 'bf16')
        self.expect(done, 0, out='beside a kernel on all SMs')
        self.assertIn(' busy kernel ', done.stdout)

    def test_no_libraries(self):
        self.write('libs/libnccl.so.2', '')
        done = self.bench('--libs', os.path.join(self.folder, 'libs'))
        self.expect(done, 1, err='symmshim bench: a rank could not be started: are libcudart.so.13 and libnccl.so.2 in')

    def test_wrong_use(self):
        for args, message in ((('--ops', 'broadcast'), "--ops: unknown word 'broadcast'"),
                              (('--dtypes', 'bf16,'), "--dtypes: unknown word ''"),
                              (('--min-bytes', '1X'), '--min-bytes wants a number of bytes such as 4096, 64K'),
                              (('--rounds', '52'), "--rounds wants a number from 1 to 51, not '52'"),
                              (('--timeout', '0'), '--timeout wants a number from 1'),
                              (('--ranks', '1'), '--ranks wants a number from 2')):
            self.expect(self.run_tool('bench', *args), 2, err=message)
        self.expect(self.bench('--min-bytes', '1M'), 1, err='no case is left to measure')


if __name__ == '__main__':
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
