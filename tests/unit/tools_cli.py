# SPDX-License-Identifier: Apache-2.0
"""Runs the built symmshim tool: what it prints where, and its exit statuses.

Usage: tools_cli.py SYMMSHIM FAKE_SHIM SOURCE_ROOT
"""
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import unittest

from tools_base import FAKE_SHIM, MIB, ROOT, TOOL, ToolTest


class Dispatch(ToolTest):
    def test_help_and_version(self):
        self.expect(self.run_tool('--help'), 0, out='explain')
        self.assertRegex(self.run_tool('--version').stdout, r'^symmshim \d+\.\d+\.\d+\n$')
        for command in ('run', 'report', 'doctor', 'explain', 'check', 'bench', 'tune'):
            self.expect(self.run_tool(command, '--help'), 0, out=f'Usage: symmshim {command}')

    def test_wrong_use(self):
        self.expect(self.run_tool(), 2,
                    err='symmshim: no command given; commands: run, report, doctor, explain, check, bench, tune')
        self.expect(self.run_tool('chekc'), 2,
                    err="unknown command 'chekc'; commands: run, report, doctor, explain, check, bench, tune")
        for command in ('run', 'report', 'doctor', 'explain', 'check', 'bench', 'tune'):
            self.expect(self.run_tool(command, '--nonsense'), 2, err=f'symmshim {command}: unrecognized option')
            if command not in ('doctor', 'bench', 'tune'):
                self.expect(self.run_tool(command), 2, err=f'symmshim {command}: ')

    def test_full_disk(self):
        with open('/dev/full', 'w', encoding='ascii') as full:
            done = subprocess.run([TOOL, '--help'], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn('cannot write', done.stderr)

    def colours(self, **env):
        """Output of `check` on a terminal."""
        master, slave = pty.openpty()
        subprocess.run([TOOL, 'check', os.path.join(ROOT, 'policy/default.conf')], env={**self.env, **env},
                       stdin=subprocess.DEVNULL, stdout=slave, check=True)
        os.close(slave)
        text = os.read(master, 4096).decode()
        os.close(master)
        return '\x1b[' in text

    def test_colours_on_terminals_only(self):
        self.assertTrue(self.colours())
        self.assertFalse(self.colours(NO_COLOR='1'))
        self.assertNotIn('\x1b[', self.run_tool('check', os.path.join(ROOT, 'policy/default.conf')).stdout)


def sanitized(path):
    with open(path, 'rb') as file:
        return re.search(rb'__(asan_init|tsan_init|ubsan_handle)', file.read()) is not None


class Bench(ToolTest):
    """Quick, and on a machine that others use: what is printed, not what is measured."""

    def test_wrong_use(self):
        if not os.path.exists('/dev/nvidia0'):
            self.expect(self.run_tool('bench'), 1, err='two GPUs are needed, and 0 can be seen; --host')
        for word in ('0', '1001', '2x', ''):
            self.expect(self.run_tool('bench', '--host', '--runs', word), 2, err=f"from 1 to 1000, not '{word}'")
        self.expect(self.run_tool('bench', '--host', 'all'), 2, err="unexpected argument 'all'")
        self.expect(self.run_tool('bench', '--host', '--shim', 'absent'), 1, err='absent: No such file')

    def test_a_shim_that_does_nothing_has_no_figures(self):
        done = self.run_tool('bench', '--host', '--runs', '1', '--shim', FAKE_SHIM, TMPDIR=self.folder)
        self.expect(done, 1, err='symmshim bench: agreed_2: 0 calls of rank 0 went symmetric\n')
        self.assertEqual(os.listdir(self.folder), [])

    @unittest.skipIf(sanitized(TOOL), 'a sanitizer cannot be preloaded into programs that it was not built into')
    def test_json(self):
        # What the user has set is nothing to the programs.
        done = self.run_tool('bench', '--host', '--json', '--runs', '2', TMPDIR=self.folder, NCCL_COMM_ID='1.2.3.4:5',
                             SYMMSHIM='off', SYMMSHIM_AUDIT='audit', SYMMSHIM_POLICY='absent')
        self.expect(done, 0, out='{')
        self.assertEqual(os.listdir(self.folder), [])
        answer = json.loads(done.stdout)
        self.assertEqual({key: answer[key] for key in ('schema', 'runs', 'cores')},
                         {'schema': 1, 'runs': 2, 'cores': len(os.sched_getaffinity(0))})
        cases = {case['name']: case for case in answer['cases']}
        self.assertEqual(len(cases), len(answer['cases']))
        self.assertLessEqual({'passed_broadcast', 'off_all_reduce', 'decided_2', 'audit_call_1', 'startup', 'load_300',
                              *(f'agreed_{n}{late}' for n in (2, 4, 8) for late in ('', '_late_50', '_late_500'))},
                             set(cases))
        for name, case in cases.items():
            late = {'late_ns'} if case['late_us'] else set()
            added = {'base', 'added_ns'} if 'base' in case else set()
            self.assertEqual(set(case), {'name', 'ranks', 'late_us', 'ns'} | late | added, name)
            for key in {'ns'} | late | added - {'base'}:
                figure = case[key]
                self.assertEqual(set(figure), {'median', 'min', 'max'}, name)
                self.assertTrue(figure['min'] <= figure['median'] <= figure['max'], (name, key, figure))
            self.assertGreater(case['ns']['median'], 0, name)
            if added:
                self.assertIn(case['base'], cases, name)
        self.assertEqual([cases['agreed_8'][key] for key in ('ranks', 'late_us')], [8, 0])
        # That a rank which is late is waited for is no matter of speed.
        self.assertGreater(cases['agreed_2_late_500']['ns']['max'], 400e3)

    @unittest.skipIf(sanitized(TOOL), 'as above')
    def test_table(self):
        done = self.run_tool('bench', '--host', '--runs', '1', TMPDIR=self.folder)
        self.expect(done, 0, out='symmshim ')
        self.assertRegex(done.stdout, r'\npassed-through broadcast( +-?[\d.]+ [num]?s){4}\n')
        self.assertRegex(done.stdout, r'\nagreed all-gather, 2 ranks, one 50 us late: that one( +[\d.]+ [num]s){3} *\n')


class Check(ToolTest):
    def test_good(self):
        path = self.write('good.conf', '[rule a]\npath = plain\n')
        self.expect(self.run_tool('check', path), 0, out=f'{path}: ok (1 rule)\n')
        self.expect(self.run_tool('check', os.path.join(ROOT, 'policy/default.conf')), 0, out=': ok (4 rules)\n')

    def test_bad(self):
        good = self.write('good.conf', '')
        bad = self.write('bad.conf', '[shim]\nagre_us = 1\n')
        done = self.run_tool('check', bad, good, 'absent')
        self.expect(done, 1, out=f'{good}: ok', err=f"{bad}:2: unknown key 'agre_us' in [shim]; known keys: agree_us,")
        self.assertIn('absent: cannot be opened: No such file or directory\n', done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 2)
        self.assertEqual(len(done.stdout.splitlines()), 1)

    def test_json(self):
        good = self.write('good.conf', '[shim]\nwarn_s = 5\n')
        bad = self.write('bad.conf', '[shim]\n\nagree_us = "\n')
        done = self.run_tool('check', '--json', good, bad)
        self.expect(done, 1, out='{')
        answer = json.loads(done.stdout)
        self.assertEqual(answer['schema'], 1)
        self.assertEqual([file['ok'] for file in answer['files']], [True, False])
        self.assertEqual(answer['files'][0]['rules'], 4)
        self.assertRegex(answer['files'][0]['hash'], '^[0-9a-f]{16}$')
        self.assertEqual(answer['files'][1]['line'], 3)
        self.assertIn('agree_us must be', answer['files'][1]['message'])
        odd = os.fsencode(self.folder) + b'/\xff.conf'
        with open(odd, 'wb'):
            pass
        self.assertTrue(json.loads(self.run_tool('check', '--json', odd).stdout)['files'][0]['ok'])


class Explain(ToolTest):
    CALL = ('--op', 'reduce_scatter', '--bytes', '64M', '--dtype', 'bf16', '--nranks', '2')

    def explain(self, *args, **env):
        done = self.run_tool('explain', *args, '--json', **env)
        self.expect(done, 0, out='{')
        return json.loads(done.stdout)

    def test_for_people(self):
        done = self.run_tool('explain', *self.CALL, '--redop', 'avg')
        self.expect(done, 0, out='policy:   built in\n')
        self.assertIn('call:     reduce_scatter avg, bf16, 64 MiB, 2 ranks, NCCL 2.28.9\n', done.stdout)
        self.assertIn('path:     window, from [rule reduce_scatter_avg_2]\n', done.stdout)
        self.assertIn('result:   window, rewrite post_scale\n', done.stdout)
        self.assertNotIn('reason:', done.stdout)
        done = self.run_tool('explain', *self.CALL, '--redop', 'max')
        self.assertIn('path:     plain, from [reduce_scatter]\n', done.stdout)
        self.assertIn('result:   plain\nreason:   redop: NCCL has no symmetric kernel', done.stdout)

    def test_json(self):
        answer = self.explain(*self.CALL, '--redop', 'avg')
        self.assertEqual(answer, {
            'schema': 1, 'policy': None, 'arena': True,
            'call': {'op': 'reduce_scatter', 'bytes': 64 * MIB, 'dtype': 'bf16', 'redop': 'avg', 'nranks': 2,
                     'nccl': '2.28.9'},
            'path': {'word': 'window', 'from': '[rule reduce_scatter_avg_2]'},
            'rewrite': {'word': 'post_scale', 'from': '[rule reduce_scatter_avg_2]'},
            'result': {'path': 'window', 'rewrite': 'post_scale', 'reason': None, 'meaning': None}})

    def test_defaults(self):
        self.assertEqual(self.explain(*self.CALL)['call']['redop'], 'sum')
        call = ('--op', 'all_gather', '--bytes', '30', '--dtype', 'bf16', '--nranks', '3')
        answer = self.explain(*call, '--nccl', '2.8.4')
        self.assertEqual(answer['call']['redop'], 'none')
        self.assertEqual(answer['call']['nccl'], '2.8.4')
        self.assertEqual(answer['result']['reason'], 'nccl_version')
        self.assertEqual(answer['path'], {'word': 'plain', 'from': '[all_gather]'})

    def test_policy_in_force(self):
        mine = '[arena]\nenable = no\n[rule mine]\npath = window\n'
        named = self.write('named.conf', mine)
        home = self.write('.config/symmshim/symmshim.conf', '[rule home]\npath = window\n')
        self.assertEqual(self.explain(*self.CALL)['policy'], home)
        self.assertEqual(self.explain(*self.CALL)['path']['from'], '[rule home]')
        self.assertEqual(self.explain(*self.CALL, SYMMSHIM_POLICY=named)['policy'], named)
        answer = self.explain(*self.CALL, '--policy', 'named.conf')
        self.assertEqual(answer['policy'], 'named.conf')
        self.assertFalse(answer['arena'])
        self.assertEqual(answer['rewrite'], {'word': 'none', 'from': '[reduce_scatter]'})
        self.assertIn('[arena] enable = no', self.run_tool('explain', *self.CALL, '--policy', named).stdout)

    def test_bad_policy(self):
        bad = self.write('bad.conf', '[shim]\nx\n')
        self.expect(self.run_tool('explain', *self.CALL, '--policy', bad), 1, err=f'{bad}:2: ')
        self.expect(self.run_tool('explain', *self.CALL, SYMMSHIM_POLICY='/nowhere'), 1,
                    err='/nowhere: cannot be opened')

    def test_wrong_calls(self):
        def wrong(message, *args):
            self.expect(self.run_tool('explain', *self.CALL, *args), 2, err=message)

        wrong('all_gather does not reduce', '--op', 'all_gather', '--redop', 'sum')
        wrong('--redop cannot be none', '--redop', 'none')
        wrong('--bytes must be a multiple of 4 here (bf16 elements for each rank)', '--bytes', '6')
        wrong('--bytes must be a number', '--bytes', '64MiB')
        wrong('--bytes must be a number', '--bytes', '9999999999G')
        wrong("--nranks must be a whole number from 1 on, not '0'", '--nranks', '0')
        wrong('--nranks must be', '--nranks', '2x')
        wrong('--nranks must be', '--nranks', '99999999999')
        wrong('--nccl must be a version', '--nccl', '2.28')
        wrong("unknown op 'all_to_all'", '--op', 'all_to_all')
        wrong("unknown dtype 'float'", '--dtype', 'float')
        wrong("unknown redop 'mean'", '--redop', 'mean')
        wrong("unexpected argument 'more'", 'more')
        self.expect(self.run_tool('explain', *self.CALL[2:]), 2, err='--op, --bytes, --dtype and --nranks are needed')


class Run(ToolTest):
    SHOW = ('sh', '-c', 'echo "$LD_PRELOAD|$SYMMSHIM|$SYMMSHIM_RUN|$SYMMSHIM_POLICY|$SYMMSHIM_AUDIT"')

    def run_under(self, *args, **env):
        return self.run_tool('run', '--shim', FAKE_SHIM, *args, **env)

    def shown(self, *args, **env):
        done = self.run_under(*args, '--', *self.SHOW, **env)
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        return done.stdout.rstrip('\n').split('|')

    def test_environment(self):
        self.assertEqual(self.shown(), [FAKE_SHIM, 'on', '1', '', ''])
        self.assertEqual(self.shown('--off')[1], 'off')
        self.assertEqual(self.shown('--audit-only', SYMMSHIM='off')[1], 'audit')
        self.assertEqual(self.shown('--audit', 'log.%p')[4], os.path.join(self.folder, 'log.%p'))
        self.assertEqual(self.shown('--audit', '/tmp/log.%p')[4], '/tmp/log.%p')

    def test_others_stay_first_in_the_preload(self):
        other = os.path.join(self.folder, 'other.so')
        shutil.copy(FAKE_SHIM, other)
        self.assertEqual(self.shown(LD_PRELOAD=other)[0], f'{other}:{FAKE_SHIM}')
        self.assertEqual(self.shown(LD_PRELOAD='')[0], FAKE_SHIM)
        for there in (f'{FAKE_SHIM}', f'{other}:{FAKE_SHIM}', f'{FAKE_SHIM} {other}'):
            self.assertEqual(self.shown(LD_PRELOAD=there)[0], there)
        with open('/proc/self/maps', encoding='utf-8') as maps:
            self.assertNotIn(FAKE_SHIM, maps.read())
        self.assertIn(FAKE_SHIM, self.run_under('--', 'cat', '/proc/self/maps').stdout)

    def test_policy(self):
        path = self.write('named.conf', '[shim]\nagree_us = 1\n')
        self.assertEqual(self.shown('--policy', 'named.conf')[3], path)
        self.assertEqual(self.shown(SYMMSHIM_POLICY='named.conf')[3], path)
        home = self.write('.config/symmshim/symmshim.conf', '')
        self.assertEqual(self.shown()[3], home)

    def test_bad_policy_is_refused(self):
        bad = self.write('bad.conf', '[shim]\nagree_us = x\n')
        self.expect(self.run_under('--policy', bad, '--', 'echo', 'started'), 1, err=f'{bad}:2: agree_us must be')
        self.expect(self.run_under('--', 'echo', 'started', SYMMSHIM_POLICY=bad), 1, err=f'{bad}:2: ')
        self.expect(self.run_under('--policy', 'absent', '--', 'echo', 'started'), 1, err='absent: cannot be opened')
        self.expect(self.run_under('--off', '--', 'echo', 'started', SYMMSHIM_POLICY=bad), 0, out='started')
        self.expect(self.run_under('--off', '--policy', bad, '--', 'echo', 'started'), 1, err=f'{bad}:2: ')

    def test_status_is_the_commands(self):
        self.expect(self.run_under('--', 'sh', '-c', 'exit 42'), 42)
        self.assertEqual(self.run_under('--', 'sh', '-c', 'kill -TERM $$').returncode, -signal.SIGTERM)
        self.assertEqual(self.run_under('sh', '-c', 'exit 3', '--off').returncode, 3)
        self.expect(self.run_under('--', 'no-such-command-here'), 127, err='symmshim run: no-such-command-here: ')
        plain = self.write('not-executable', '')
        self.expect(self.run_under('--', plain), 126, err=f'symmshim run: {plain}: Permission denied')

    def test_shim_that_cannot_be_loaded(self):
        for name in ('with blank', 'with:colon'):
            path = os.path.join(self.folder, name + '.so')
            shutil.copy(FAKE_SHIM, path)
            self.expect(self.run_tool('run', '--shim', path, 'true'), 1, err='LD_PRELOAD cannot hold a path with')
        self.expect(self.run_tool('run', '--shim', 'absent.so', 'true'), 1, err='absent.so: No such file')

    def test_shim_of_the_build_tree(self):
        os.makedirs(os.path.join(self.folder, 'tools'))
        os.makedirs(os.path.join(self.folder, 'shim'))
        tool = shutil.copy(TOOL, os.path.join(self.folder, 'tools'))
        shim = shutil.copy(FAKE_SHIM, os.path.join(self.folder, 'shim/libsymmshim.so'))
        self.assertEqual(self.run_tool('run', '--', *self.SHOW, tool=tool).stdout.split('|')[0], shim)
        os.symlink(tool, os.path.join(self.folder, 'link'))
        shown = self.run_tool('run', '--', *self.SHOW, tool=os.path.join(self.folder, 'link')).stdout
        self.assertEqual(shown.split('|')[0], shim)

    def test_wrong_use(self):
        self.expect(self.run_tool('run', '--off', '--audit-only', 'true'), 2, err='exclude each other')
        self.expect(self.run_tool('run', '--off'), 2, err='no command given')


class Pages(ToolTest):
    """The manual pages name what there is."""

    def page(self, path):
        with open(os.path.join(ROOT, path), encoding='utf-8') as file:
            return file.read()

    def test_every_reason_is_documented(self):
        codes = re.findall(r'\bX\((\w+), "', self.page('shim/reason.h'))
        page = self.page('tools/symmshim-audit.5')
        listed = re.findall(r'^\.It Cm (\w+)$', page.split('.Sh REASONS')[1], re.M)
        self.assertGreater(len(codes), 30)
        self.assertEqual(listed, codes)

    def test_every_key_is_documented(self):
        page = self.page('policy/symmshim.conf.5')
        default = self.page('policy/default.conf')
        for section in ('shim', 'arena', 'all_gather', 'rule a'):
            bad = self.write('bad.conf', f'[{section}]\nx = 1\n')
            keys = self.run_tool('check', bad).stderr.strip().split('known keys: ')[1].split(', ')
            self.assertGreater(len(keys), 1)
            for key in keys:
                self.assertRegex(page, rf'(?m)^\.It Cm {key} Li =')
                if section in ('shim', 'arena'):
                    self.assertRegex(default, rf'(?m)^{key} = ')

    def test_every_word_is_documented(self):
        page = ' '.join(self.page('policy/symmshim.conf.5').split())
        for key in ('op', 'dtype', 'redop', 'path', 'rewrite'):
            bad = self.write('bad.conf', f'[rule a]\n{key} = x\n')
            words = self.run_tool('check', bad).stderr.strip().split('known: ')[1].split(', ')
            self.assertGreater(len(words), 1)
            for word in words:
                self.assertRegex(page, rf'\b{word}\b')

    def test_the_example_of_the_log_is_one(self):
        examples = self.page('tools/symmshim-audit.5').split('.Bd -literal\n')[1:]
        example = ''.join(text.split('.Ed')[0] for text in examples)
        log = self.write('log', example.replace('\n ', '').strip() + '\n')
        done = self.run_tool('report', '--json', log)
        self.expect(done, 0, out='{')
        self.assertEqual(json.loads(done.stdout)['ops']['reduce_scatter']['calls'], 28)

    def test_the_examples_of_the_policy_are_good(self):
        examples = self.page('policy/symmshim.conf.5').split('.Bd -literal -offset indent\n')[1:]
        self.assertEqual(len(examples), 2)
        for example in examples:
            self.expect(self.run_tool('check', self.write('example.conf', example.split('.Ed')[0])), 0, out='ok')

    def test_every_option_is_documented(self):
        page = self.page('tools/symmshim.1')
        for command in ('run', 'report', 'doctor', 'explain', 'check', 'bench', 'tune'):
            options = re.findall(r'^  --([\w-]+)', self.run_tool(command, '--help').stdout, re.M)
            self.assertGreater(len(options), 1)
            section = re.split(r'\n\.S[sh] ', page.split(f'.Ss {command}\n')[1])[0]
            for option in set(options) - {'help'}:
                self.assertRegex(section, rf'(?m)^\.It Fl -{option}( |$)')

    @unittest.skipUnless(shutil.which('mandoc'), 'mandoc is not there')
    def test_pages_are_well_formed(self):
        pages = ('tools/symmshim.1', 'tools/symmshim-audit.5', 'policy/symmshim.conf.5')
        done = subprocess.run(['mandoc', '-Tlint', *(os.path.join(ROOT, page) for page in pages)], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        complaints = [line for line in done.stdout.splitlines() if 'referenced manual not found' not in line]
        self.assertEqual(complaints, [])


if __name__ == '__main__':
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
