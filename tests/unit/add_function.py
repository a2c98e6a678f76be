# SPDX-License-Identifier: Apache-2.0
"""Adds an interposed function to a copy of the tree, as HACKING.md says, and builds it.

With its row, its handler and its golden line the shim exports the function and nothing else is new; each of the three
left out or wrong is found: the handler by the linker, the row by the compiler where NCCL's header is installed, the
line by the comparison that tests/preload makes. In the same copy a changed kernel is seen to reach the shim.

Usage: add_function.py SOURCE_ROOT MESON_OPTION...
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT, OPTIONS = os.path.abspath(sys.argv[1]), sys.argv[2:]
NAME = 'ncclCommCuDevice'
SHIM, CHECK = 'shim/libsymmshim.so', 'shim/libcheck_abi.a'

ROW = r'''  X(NCCL, ncclCommCuDevice, ncclResult_t, (const ncclComm_t comm, int *device), (comm, device), \
    ncclInvalidUsage) \
'''
WRONG = ('int *device', 'long *device')

HANDLER = '''
ncclResult_t hook_ncclCommCuDevice(const ncclComm_t comm, int *device)
{
  return REAL(ncclCommCuDevice)(comm, device);
}
'''


class AddFunction(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.tree, cls.build = os.path.join(cls.folder, 'tree'), os.path.join(cls.folder, 'build')
        for name in ('meson.build', 'meson_options.txt', 'policy', 'shim', 'tests/preload/exports.golden', 'tools'):
            source, target = os.path.join(ROOT, name), os.path.join(cls.tree, name)
            if os.path.isdir(source):
                shutil.copytree(source, target, ignore=shutil.ignore_patterns('__pycache__'))
            else:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy(source, target)
        done = cls.run_in_tree('meson', 'setup', cls.build, cls.tree, '-Dtests=disabled', '-Dbuildtype=debug',
                               '-Dwerror=true', *OPTIONS)
        if done.returncode != 0:
            raise RuntimeError(done.stdout)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def run_in_tree(cls, *command):
        return subprocess.run(command, cwd=cls.tree, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors='replace', check=False)

    def setUp(self):
        self.original = {}
        self.addCleanup(self.restore)

    def restore(self):
        for path, text in self.original.items():
            self.write(path, text)

    def read(self, path):
        with open(os.path.join(self.tree, path), encoding='utf-8') as file:
            return file.read()

    def write(self, path, text):
        with open(os.path.join(self.tree, path), 'w', encoding='utf-8') as file:
            file.write(text)

    def change(self, path, text):
        self.original.setdefault(path, self.read(path))
        self.write(path, text)

    def add_row(self, row):
        table, count = re.subn(r'(?m)^#define HOOKS\(X\)\s*\\\n', lambda match: match[0] + row,
                               self.read('shim/hooks.h'), count=1)
        self.assertEqual(count, 1, 'shim/hooks.h has no "#define HOOKS(X)"')
        self.assertNotIn(f'hook_{NAME}', self.read('shim/hook_coll.c'), 'the shim has this function already')
        self.change('shim/hooks.h', table)

    def add_handler(self, text):
        self.change('shim/hook_coll.c', self.read('shim/hook_coll.c') + text)

    def make(self, *targets):
        return self.run_in_tree('ninja', '-C', self.build, *targets)

    def has_header(self):
        return CHECK in self.read(os.path.join(self.build, 'build.ninja'))

    def exports(self):
        done = self.run_in_tree('nm', '-D', '--defined-only', os.path.join(self.build, SHIM))
        self.assertEqual(done.returncode, 0, done.stdout)
        names = sorted(line.split()[-1] for line in done.stdout.splitlines())
        return [name for name in names if not name.startswith('ncclProfiler_')]  # no functions

    def test_row_then_handler_then_line(self):
        self.add_row(ROW)
        done = self.make(SHIM)
        self.assertNotEqual(done.returncode, 0, 'it builds without a handler')
        self.assertRegex(done.stdout, f'undefined (reference to|symbol:) .?hook_{NAME}')
        self.add_handler(HANDLER)
        done = self.make(SHIM, *([CHECK] if self.has_header() else []))
        self.assertEqual(done.returncode, 0, done.stdout)
        golden = self.read('tests/preload/exports.golden').splitlines()
        self.assertEqual(sorted(set(self.exports()) - set(golden)), [NAME], 'new against the golden file')
        self.assertEqual(self.exports(), sorted(golden + [NAME]))

    def test_row_with_another_prototype_than_the_handler(self):
        self.add_row(ROW.replace(*WRONG))
        self.add_handler(HANDLER)
        done = self.make(SHIM + '.p/hook_coll.c.o')
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout, f'conflicting types for .?hook_{NAME}')

    def test_row_with_another_prototype_than_the_header(self):
        if not self.has_header():
            self.skipTest('no nccl.h here')
        self.add_row(ROW.replace(*WRONG))
        done = self.make(CHECK)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(f'{NAME} has another prototype', done.stdout)

    def test_changed_kernel(self):
        """An updated tree that is built in place must not keep old kernels: every call would stay plain."""
        self.assertEqual(self.make(SHIM).returncode, 0)
        path, mark = 'shim/kernels/scale.cu', '_that_only_this_test_has'
        self.change(path, self.read(path) + f'\nKERNEL scale{mark}(float *one)\n{{\n  *one = 1;\n}}\n')
        done = self.make(SHIM)
        self.assertEqual(done.returncode, 0, done.stdout)
        with open(os.path.join(self.build, SHIM), 'rb') as file:
            self.assertTrue(mark.encode() in file.read(), 'the shim has the kernels of the build before')


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
