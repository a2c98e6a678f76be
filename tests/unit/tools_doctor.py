# SPDX-License-Identifier: Apache-2.0
"""Runs `symmshim doctor` where there is nothing, on made-up libraries, and on the simulation.

Usage: tools_doctor.py SYMMSHIM FAKE_SHIM SOURCE_ROOT FAKE_CUDA FAKE_NCCL SHIM JOB
"""
import json
import os
import shutil
import struct
import sys
import unittest

from tools_base import ToolTest

FAKE_CUDA, FAKE_NCCL, SHIM, JOB = (os.path.abspath(path) for path in sys.argv[4:8])
NEEDED, STRTAB, NULL = 1, 5, 0


def elf(needed=(), defined=()):
    """A small shared object: sections .dynstr, .dynamic and .dynsym, enough to be read."""
    strings = b'\0'
    places = {}
    for name in (*needed, *defined):
        places[name] = len(strings)
        strings += name.encode() + b'\0'
    strings += b'\0' * (-len(strings) % 8)
    dynamic = b''.join(struct.pack('<QQ', NEEDED, places[name]) for name in needed) + struct.pack('<QQ', NULL, 0)
    symbols = bytes(24) + b''.join(struct.pack('<IBBHQQ', places[name], 0x12, 0, 1, 0, 0) for name in defined)
    parts, offset, heads = b'', 64, struct.pack('<IIQQQQIIQQ', *[0] * 10)
    for kind, link, content in ((3, 0, strings), (6, 1, dynamic), (11, 1, symbols)):
        heads += struct.pack('<IIQQQQIIQQ', 0, kind, 0, 0, offset, len(content), link, 0, 8, 0)
        parts += content
        offset += len(content)
    head = b'\x7fELF\x02\x01\x01' + bytes(9) + struct.pack('<HHIQQQIHHHHHH', 3, 62, 1, 0, 0, offset, 0, 64, 0, 0, 64, 4, 0)
    return head + parts + heads


class DoctorTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.libraries = os.path.join(self.folder, 'lib')
        os.mkdir(self.libraries)
        # A Python that finds nothing, so that the machine's own has no part in the answers.
        self.put_python('')

    def put_python(self, text):
        path = self.write('bin/python3', f'#!/bin/sh\nprintf "{text}"\n')
        os.chmod(path, 0o700)
        self.env['PATH'] = os.path.dirname(path) + ':' + os.environ['PATH']

    def doctor(self, *args, fake='', libraries=('cuda', 'nccl'), **env):
        for name, path in (('cuda', FAKE_CUDA), ('nccl', FAKE_NCCL)):
            target = os.path.join(self.libraries, {'cuda': 'libcuda.so.1', 'nccl': 'libnccl.so.2'}[name])
            if name in libraries:
                shutil.copy(path, target)
        env = {'LD_LIBRARY_PATH': self.libraries, 'FAKE_GPU': fake, 'TMPDIR': self.folder, **env}
        self.done = self.run_tool('doctor', '--json', *args, **env)
        answer = json.loads(self.done.stdout)
        self.assertEqual(self.done.returncode, {'ok': 0, 'no': 1, 'unknown': 2}[answer['answer']], answer)
        for check in answer['checks']:
            self.assertTrue(check['reason'], check)
            self.assertTrue(check['todo'] or check['answer'] == 'ok', check)
        return answer

    def check(self, name, answer, reason, **rest):
        """The first check of that name which is not ok, or the first."""
        found = [one for one in self.doctor(**rest)['checks'] if one['check'] == name]
        self.assertTrue(found, name)
        one = next((one for one in found if one['answer'] != 'ok'), found[0])
        self.assertEqual(one['answer'], answer, one)
        self.assertIn(reason, one['reason'])


class Doctor(DoctorTest):
    def test_yes(self):
        answer = self.doctor()
        self.assertEqual(answer['answer'], 'ok', answer)
        self.assertEqual({check['answer'] for check in answer['checks']}, {'ok'})
        self.assertLessEqual({'driver', 'gpus', 'peer_access', 'nvlink', 'vmm', 'fabric', 'nvls', 'shared_memory',
                              'container', 'allocator', 'preload', 'nccl_settings', 'nccl_conf', 'policy', 'pytorch',
                              'nccl'}, {check['check'] for check in answer['checks']})

    def test_for_people(self):
        self.doctor()
        done = self.run_tool('doctor', LD_LIBRARY_PATH=self.libraries, FAKE_GPU='apart')
        self.expect(done, 1, out='no      peer_access    GPU 0 cannot reach the memory of GPU 1 (2 of 2 pairs cannot)\n')
        self.assertIn('-> Use GPUs that reach each other', done.stdout)
        self.assertTrue(done.stdout.endswith('\nno: see what is marked no\n'))
        self.assertNotIn('\x1b', done.stdout)

    def test_contexts_are_given_back_and_nothing_is_multicast(self):
        log = os.path.join(self.folder, 'log')
        self.doctor(FAKE_LOG=log)
        with open(log, encoding='ascii') as file:
            lines = file.read().split()
        # Of two GPUs; the fabric allocation is refused.
        self.assertEqual(lines, ['retain', 'create', 'free', 'create', 'release'] * 2)

    def test_nothing_there(self):
        self.check('driver', 'no', 'libcuda.so.1 cannot be loaded', libraries=())

    def test_gpus(self):
        self.check('driver', 'no', 'cuInit failed with error 100', fake='no_device')
        self.check('driver', 'no', 'CUDA 10.2', fake='old_driver')
        self.check('driver', 'unknown', 'without an answer (signal 6)', fake='hangs_up')
        self.check('gpus', 'no', '1 is visible: Fake GPU', fake='one_gpu')
        self.check('gpus', 'ok', '2, the first is Fake GPU')
        self.check('nvlink', 'unknown', '0 of 2 pairs of GPUs', fake='pcie')
        self.check('vmm', 'no', 'GPU 0 does not support it', fake='no_vmm')
        self.check('vmm', 'no', 'GPU 0 cannot share an allocation (error 1)', fake='no_export')
        self.check('vmm', 'unknown', 'no memory free', fake='full')
        self.check('fabric', 'ok', 'refused (error 800)')
        self.check('fabric', 'ok', 'work too', fake='fabric')
        self.check('nvls', 'ok', '0 of 2')
        self.check('nvls', 'ok', 'every GPU', fake='nvls')

    def test_environment(self):
        for value in ('expandable_segments:True', 'a:b,backend:cudaMallocAsync'):
            self.check('allocator', 'no', value, PYTORCH_CUDA_ALLOC_CONF=value)
            self.check('allocator', 'no', value, PYTORCH_ALLOC_CONF=value)
        self.check('allocator', 'ok', '', PYTORCH_CUDA_ALLOC_CONF='expandable_segments:False')
        for setting in ('NCCL_WIN_ENABLE=0', 'NCCL_CUMEM_ENABLE=0', 'NCCL_P2P_DISABLE=1', 'NCCL_COMM_ID=1.2.3.4:5'):
            name, _, value = setting.partition('=')
            self.check('nccl_settings', 'no', setting, **{name: value})
        self.check('nccl_settings', 'ok', '', NCCL_WIN_ENABLE='1')
        self.check('mode', 'no', 'SYMMSHIM=off', SYMMSHIM='off')
        other = shutil.copy(FAKE_NCCL, os.path.join(self.folder, 'libmscclpp_nccl.so'))
        self.check('preload', 'no', other, LD_PRELOAD=other)

    def test_nccl_conf(self):
        path = self.write('.nccl.conf', '# NCCL_WIN_ENABLE=0\nNCCL_DEBUG=WARN\n NCCL_P2P_DISABLE = 1 # why\n')
        self.check('nccl_conf', 'no', f'{path}:3: NCCL_P2P_DISABLE keeps')
        self.check('nccl_conf', 'ok', '', NCCL_P2P_DISABLE='0')
        other = self.write('other.conf', 'NCCL_WIN_ENABLE=0\n')
        self.check('nccl_conf', 'no', f'{other}:1: NCCL_WIN_ENABLE', NCCL_CONF_FILE=other)

    def test_policy(self):
        bad = self.write('bad.conf', '[shim]\nagree_us = x\n')
        self.check('policy', 'no', f'{bad}:2: agree_us', SYMMSHIM_POLICY=bad)
        still = self.write('still.conf', '[rule a]\npath = plain\n')
        self.check('policy', 'no', f'{still} moves no call', SYMMSHIM_POLICY=still)
        self.check('policy', 'ok', 'the built-in one')

    def test_nccl(self):
        self.check('nccl', 'ok', f'2.28.9 in {self.libraries}/libnccl.so.2')
        self.check('nccl', 'no', 'is 2.26.3: older', fake='old_nccl')
        self.check('nccl', 'unknown', 'does not tell its version', fake='nccl_fails')
        self.write('lib/libnccl.so.2', 'no library')
        self.check('nccl', 'unknown', 'cannot be loaded', libraries=('cuda',))

    def torch(self, content):
        lib = os.path.join(self.folder, 'torch/lib')
        os.makedirs(lib, exist_ok=True)
        if content is not None:
            with open(os.path.join(lib, 'libtorch_cuda.so'), 'wb') as file:
                file.write(content)
        shutil.copy(FAKE_NCCL, os.path.join(lib, 'libnccl.so.2'))
        self.put_python(f'torch={self.folder}/torch\\nversion=9.8.7+cu\\nnccl={lib}/libnccl.so.2\\n')

    def test_pytorch(self):
        self.check('pytorch', 'ok', 'bin/python3 has no PyTorch')
        self.torch(elf(['libc.so.6', 'libcudart.so.13', 'libnccl.so.2']))
        self.check('pytorch', 'ok', f'9.8.7+cu in {self.folder}/torch')
        self.check('pytorch_links', 'ok', 'loads libnccl.so.2 and libcudart.so.13')
        self.check('nccl', 'ok', 'torch/lib/libnccl.so.2')
        self.torch(elf(['libcudart.so.12'], ['other', 'ncclAllGather']))
        self.check('pytorch_links', 'no', 'does not load NCCL, and has it inside')
        self.torch(elf(['libnccl.so.2']))
        self.check('pytorch_links', 'no', "does not load CUDA's runtime; it may")

    def test_pytorch_without_cuda(self):
        self.torch(None)
        self.check('pytorch_links', 'no', 'for other devices')

    def test_any_bytes_may_be_in_an_object(self):
        good = elf(['libcudart.so.13', 'libnccl.so.2'], ['ncclAllGather'])
        for content in (b'', b'\x7fELF', good[:70], good[:-64], good[:40] + b'\xff' * 8 + good[48:], bytes(4096)):
            self.torch(content)
            found = [one for one in self.doctor()['checks'] if one['check'] == 'pytorch_links']
            self.assertIn(found[0]['answer'], ('no', 'unknown'))

    def test_the_commands_python(self):
        self.put_python('')
        script = self.write('torchrun', f'#!{self.folder}/other/python3\n')
        other = self.write('other/python3', '#!/bin/sh\nprintf "torch=/there\\n"\n')
        os.chmod(other, 0o700)
        os.chmod(script, 0o700)
        found = self.doctor('--shim', SHIM, '--seconds', '5', '--', script)['checks']
        self.assertIn('/there', next(one for one in found if one['check'] == 'pytorch')['reason'])

    def test_wrong_use(self):
        for word in ('0', 'x', '', '-1', '86401'):
            self.expect(self.run_tool('doctor', '--seconds', word), 2, err='--seconds must be a whole number')


class Command(DoctorTest):
    """What the command's calls say."""

    def job(self, *command, seconds=30, **env):
        env = {'LD_LIBRARY_PATH': os.path.dirname(JOB) + '/../../tests/sim', **env}
        answer = self.doctor('--shim', SHIM, '--seconds', str(seconds), '--', *command, **env)
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith('symmshim-doctor')], [])
        return {one['check']: one for one in answer['checks']}, answer

    def test_demo(self):
        text = '[shim]\nagree_us = 1000\naudit = summary\n[arena]\ncallers = %s\n[rule a]\nop = all_gather\npath = window\n'
        policy = self.write('my.conf', text % '*')
        checks, answer = self.job(JOB, '--steps', '2', SYMMSHIM_POLICY=policy)
        self.assertIn('calls were seen in 2 processes', checks['job']['reason'])
        coverage = [one['reason'] for one in answer['checks'] if one['check'] == 'coverage']
        self.assertEqual(coverage, ['all_gather: all 32 calls would go symmetric',
                                    'reduce_scatter: 0 of 16 calls would go symmetric; most of the others stay plain '
                                    'by redop'])
        self.assertIn('every element right', self.done.stderr)
        # and where the memory would not be the arena's
        policy = self.write('my.conf', text % 'libc10_cuda.so')
        checks, answer = self.job(JOB, '--steps', '2', SYMMSHIM_POLICY=policy)
        self.assertEqual((checks['job']['answer'], checks['job']['reason']),
                         ('no', "none of the command's calls would go symmetric"))
        coverage = next(one for one in answer['checks'] if one['check'] == 'coverage')
        self.assertIn('all_gather: 0 of 32 calls would go symmetric; most of the others stay plain by not_in_arena',
                      coverage['reason'])
        self.assertIn('callers', coverage['todo'])

    def test_long_ones_are_ended(self):
        policy = self.write('my.conf', '[arena]\ncallers = *\n[rule a]\nop = all_gather\npath = window\n')
        checks, _ = self.job(JOB, '--steps', '1000000', seconds=3, SYMMSHIM_POLICY=policy)
        self.assertEqual(checks['job']['answer'], 'ok')
        self.job('sh', '-c', 'trap "echo was told >&2; exit" TERM; sleep 30 & wait', seconds=1)
        self.assertIn('was told', self.done.stderr)

    def test_without_calls(self):
        for command, answer, reason in ((['true'], 'unknown', 'no collective was seen'), (['false'], 'unknown', 'status 1'),
                                        (['no-such-command'], 'no', 'could not be started'),
                                        (['sleep', '30'], 'unknown', 'no collective was seen in 1 seconds')):
            checks, _ = self.job(*command, seconds=1)
            self.assertEqual(checks['job']['answer'], answer)
            self.assertIn(reason, checks['job']['reason'])


if __name__ == '__main__':
    unittest.main(argv=[sys.argv[0], *sys.argv[8:]])
