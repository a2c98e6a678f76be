# SPDX-License-Identifier: Apache-2.0
"""What the tests of the symmshim tool share: they are started as TEST.py SYMMSHIM FAKE_SHIM SOURCE_ROOT."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOL, FAKE_SHIM, ROOT = (os.path.abspath(path) for path in sys.argv[1:4])
DATA = os.path.join(ROOT, 'tests/unit/data')
MIB = 1 << 20


def data(name):
    return os.path.join(DATA, name)


class ToolTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = os.path.realpath(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.env = {'PATH': os.environ['PATH'], 'HOME': self.folder}
        # Some tests preload a library into the tool itself, which a tool built with ASan would refuse.
        self.env['ASAN_OPTIONS'] = os.environ.get('ASAN_OPTIONS', '') + ':verify_asan_link_order=0'
        if 'UBSAN_OPTIONS' in os.environ:
            self.env['UBSAN_OPTIONS'] = os.environ['UBSAN_OPTIONS']

    def run_tool(self, *args, tool=TOOL, **env):
        return subprocess.run([tool, *args], env={**self.env, **env}, cwd=self.folder, text=True, errors='replace',
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
        return path

    def expect(self, result, status, out='', err=''):
        """`out` and `err` must occur; an empty one means that nothing at all is printed there."""
        self.assertEqual(result.returncode, status, result)
        for wanted, text in ((out, result.stdout), (err, result.stderr)):
            if wanted:
                self.assertIn(wanted, text, result)
            else:
                self.assertEqual(text, '', result)
