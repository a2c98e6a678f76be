# SPDX-License-Identifier: Apache-2.0
"""Help, manual pages and completions name the same commands and options, and the completions work.

Usage: tools_help.py SYMMSHIM FAKE_SHIM SOURCE_ROOT
"""
import os
import re
import shutil
import subprocess
import sys
import unittest

from tools_base import ROOT, ToolTest

BASH, ZSH = (os.path.join(ROOT, 'tools/completion', name) for name in ('symmshim.bash', '_symmshim'))


def text_of(path):
    with open(os.path.join(ROOT, path), encoding='utf-8') as file:
        return file.read()


class Help(ToolTest):
    maxDiff = None

    def commands(self):
        names = re.findall(r'^  (\w+) +\w', self.run_tool('--help').stdout, re.M)
        self.assertGreater(len(names), 5)
        return names

    def options(self, command):
        found = re.findall(r'^  (--[\w-]+)', self.run_tool(command, '--help').stdout, re.M)
        self.assertIn('--help', found)
        return set(found)

    def complete(self, *words):
        """What bash offers for the last word."""
        script = f'source "{BASH}"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _symmshim; printf "%s\\n" "${{COMPREPLY[@]}}"'
        done = subprocess.run(['bash', '--norc', '-c', script, 'bash', 'symmshim', *words], cwd=self.folder, text=True,
                              stdout=subprocess.PIPE, check=True)
        return set(done.stdout.split())

    def test_every_command_has_help_and_a_section(self):
        page = text_of('tools/symmshim.1')
        sections = re.findall(r'^\.Ss (\w+)$', page, re.M)
        synopsis = page.split('.Sh SYNOPSIS')[1].split('.Sh DESCRIPTION')[0]
        self.assertEqual(set(sections), set(self.commands()))
        for command in self.commands():
            self.assertIn(f'.Cm {command}\n', synopsis)
            done = self.run_tool(command, '--help')
            self.expect(done, 0, out=f'Usage: symmshim {command} ')
            self.assertIn('Exit status:', done.stdout if command != 'bench' else 'Exit status:')

    def test_every_option_is_in_the_manual(self):
        page = text_of('tools/symmshim.1')
        synopsis = page.split('.Sh SYNOPSIS')[1].split('.Sh DESCRIPTION')[0]
        for command in self.commands():
            section = re.split(r'\n\.S[sh] ', page.split(f'.Ss {command}\n')[1])[0]
            usage = synopsis.split(f'.Cm {command}\n')[1].split('.Nm\n')[0]
            for option in self.options(command) - {'--help'}:
                self.assertRegex(section, rf'(?m)^\.It Fl -{option[2:]}( |$)', command)
                self.assertRegex(usage, rf'Fl -{option[2:]}\b', command)
            documented = set(re.findall(r'^\.It Fl (-[\w-]+)', section, re.M))
            self.assertEqual({'-' + option for option in documented}, self.options(command) - {'--help'}, command)

    def test_bash_offers_every_command_and_option(self):
        self.assertEqual(self.complete(''), {*self.commands(), '--help', '--version'})
        self.assertEqual(self.complete('rep'), {'report'})
        for command in self.commands():
            self.assertEqual(self.complete(command, '-'), self.options(command), command)

    def test_bash_offers_words_and_files(self):
        self.write('some.conf', '')
        self.assertEqual(self.complete('explain', '--op', 'all_'), {'all_gather', 'all_reduce'})
        self.assertEqual(self.complete('explain', '--dtype', 'bf'), {'bf16'})
        self.assertEqual(self.complete('run', '--policy', 'so'), {'some.conf'})
        self.assertEqual(self.complete('check', 'some'), {'some.conf'})
        self.assertIn('true', self.complete('run', '--off', '--', 'tru'))
        self.assertEqual(self.complete('run', 'true', '--o'), set())

    def test_words_are_the_policys(self):
        for key, name in (('op', 'OPS'), ('dtype', 'DTYPES'), ('redop', 'REDOPS')):
            macro = re.search(rf'#define POLICY_{name}\(X\)((.*\\\n)*.*)', text_of('policy/policy.h'))[1]
            words = set(re.findall(r'X\((\w+)\)', macro)) - {'none'}
            self.assertEqual(self.complete('explain', f'--{key}', ''), words)
            self.assertEqual(set(re.search(rf"'--{key}\[.*?:\((.*?)\)'", text_of(ZSH))[1].split()), words)

    def test_zsh_has_every_command_and_option(self):
        text = text_of(ZSH)
        self.assertEqual(re.findall(r"^    '(\w+):", text, re.M), self.commands())
        for command in self.commands():
            part = re.search(rf'^    {command}\)(.*?);;', text, re.M | re.S)[1]
            self.assertEqual(set(re.findall(r"'(?:\*|\([^)]*\))?(--[\w-]+)\[", part)), self.options(command), command)

    @unittest.skipUnless(shutil.which('zsh'), 'zsh is not installed')
    def test_zsh_can_read_it(self):
        script = f'autoload -U compinit && compinit -D -u && fpath=("{os.path.dirname(ZSH)}" $fpath) && autoload +X -U _symmshim && zsh -n "{ZSH}"'
        done = subprocess.run(['zsh', '-f', '-c', script], env=self.env, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, ''))

    def test_errors_say_what_to_do(self):
        for args in ((), ('nonsense',), *((command, 'a', '--nonsense') if command not in ('run', 'doctor') else
                                          (command, '--nonsense') for command in self.commands())):
            done = self.run_tool(*args)
            self.assertEqual(done.returncode, 2, args)
            self.assertRegex(done.stderr, r"--help\)|unrecognized option '--nonsense'", args)

    def test_completions_are_installed(self):
        build = text_of('tools/meson.build')
        self.assertIn("'completion/symmshim.bash'", build)
        self.assertIn("'completion/_symmshim'", build)


if __name__ == '__main__':
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
