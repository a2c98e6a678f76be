# SPDX-License-Identifier: Apache-2.0
"""Runs `symmshim report` of the built tool on audit logs that are made up.

Usage: tools_report.py SYMMSHIM FAKE_SHIM SOURCE_ROOT
"""
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
import unittest

from tools_base import MIB, ROOT, TOOL, ToolTest, data

try:
    import html5lib
except ImportError:
    html5lib = None

COMM, OTHER = '5be1a6f0c2d37e94', '0f3ab80c51e2d977'
START = 1764500000.0
QUARTER = 7889238  # seconds: what PyTorch's traces count from are multiples of it


def line(event, rank=0, after=0.0, pid=None, **members):
    head = {'schema': 1, 'event': event, 'time': START + after, 'pid': pid or 100 + rank, 'rank': rank}
    return json.dumps({**head, **members}) + '\n'


def call(rank=0, seq=1, path='window', reason=None, offset=0, **members):
    place = {'segment': 3, 'offset': offset}
    return line('call', rank, **{'comm': COMM, 'seq': seq, 'op': 'reduce_scatter', 'dtype': 'bf16', 'redop': 'avg',
                                 'count': 4 * MIB, 'bytes': 16 * MIB, 'capture': False, 'path': path, 'rewrite': None,
                                 'reason': reason, 'host_ns': 2000, 'send': place, 'recv': place, **members})


def summary(rank=0, calls=10, window=10, plain=None, op='reduce_scatter', each=16 * MIB, **members):
    return line('summary', rank, **{'comm': COMM, 'nranks': 2, 'op': op, 'calls': calls, 'bytes': calls * each,
                                    'window_calls': window, 'window_bytes': window * each, 'plain': plain or {},
                                    **members})


def comm(rank=0, setup_ns=0, **members):
    return line('comm', rank, **{'comm': COMM, 'comm_rank': rank, 'nranks': 2, 'nccl': '2.28.9', 'state': 'ready',
                                 'reason': None, 'setup_ns': setup_ns, **members})


def watched(rank=0, seq=1, reason=None, path='window', segment=1, send=None, recv=None, **members):
    """A call of an audit-only run; `send` and `recv` are obstacles on the path staged."""
    forecast = {'path': 'plain' if reason else path, 'rewrite': None, 'reason': reason, 'send': send, 'recv': recv}
    offset = members.pop('offset', 0)
    place = {'segment': segment, 'offset': offset, 'bytes': members.pop('segment_bytes', 64 * MIB)}
    return call(rank, seq, path='plain', reason='audit_only',
                **{'forecast': forecast, 'send': place, 'recv': {**place, 'segment': segment + 1}, **members})


def watching(rank=0, reason=None, compatibility='1' * 16, board='2' * 16, **members):
    forecast = {'state': 'plain' if reason else 'ready', 'reason': reason, 'compatibility': compatibility, 'board': board,
                'stage_max': 64 * MIB}
    return line('start', rank, mode='audit', host='a') + \
        comm(rank, **{'state': 'plain', 'reason': 'audit_only', 'forecast': forecast, **members})


class Report(ToolTest):
    def report(self, *args):
        done = self.run_tool('report', '--json', *args)
        self.assertEqual(done.returncode, 0, done)
        return json.loads(done.stdout)

    def test_adds_up_the_last_summaries(self):
        done = self.run_tool('report', '--json', data('audit_rank0.jsonl'), data('audit_rank1.jsonl'))
        self.expect(done, 0, out='{')
        answer = json.loads(done.stdout)
        for op in answer['ops'].values():
            paths = op.pop('paths')
            self.assertIsNone(op.pop('observed'))
            self.assertEqual(op.pop('plain_bytes'), {})
            self.assertEqual(sum(path['calls'] for path in paths.values()), op['calls'])
            self.assertEqual(sum(path['bytes'] for path in paths.values()), op['bytes'])
        self.assertEqual({key: answer[key] for key in ('schema', 'files', 'skipped_lines', 'cut_off', 'ops')}, {
            'schema': 1, 'files': 2, 'skipped_lines': 0, 'cut_off': False, 'ops': {
                'all_gather': {'calls': 200, 'bytes': 200 * MIB, 'symmetric_calls': 199, 'symmetric_bytes': 199 * MIB,
                               'symmetric_percent': 99.5, 'plain': {'peer_declined': 1}, 'incomplete': False},
                'reduce_scatter': {'calls': 90, 'bytes': 2570 * MIB, 'symmetric_calls': 60,
                                   'symmetric_bytes': 1920 * MIB, 'symmetric_percent': 100 * 60 / 90,
                                   'plain': {'ranks_differ': 14, 'policy': 10, 'agree_timeout': 6},
                                   'incomplete': False},
                'all_reduce': {'calls': 0, 'bytes': 0, 'symmetric_calls': 0, 'symmetric_bytes': 0,
                               'symmetric_percent': None, 'plain': {}, 'incomplete': False}}})

    def test_for_people(self):
        done = self.run_tool('report', data('audit_rank0.jsonl'), data('audit_rank1.jsonl'))
        self.expect(done, 0, out='all_gather')
        lines = [line.split() for line in done.stdout.splitlines()]
        self.assertIn(['all_gather', '200', '200', 'MiB', '199', '99.5', '%', '199', 'MiB'], lines)
        self.assertIn(['reduce_scatter', '90', '2.5', 'GiB', '60', '66.7', '%', '1.9', 'GiB'], lines)
        self.assertNotIn('all_reduce', done.stdout)
        start = lines.index(['plain', 'reduce_scatter', 'by', 'reason'])
        self.assertEqual([line[0] for line in lines[start + 1:start + 4]], ['ranks_differ', 'policy', 'agree_timeout'])
        self.assertEqual(lines[start + 1][1:], ['14', '15.6', '%'])

    def test_what_nccl_was_seen_to_do(self):
        told = {'observed_symmetric_calls': 7, 'observed_plain_calls': 2, 'mismatched_calls': 1, 'lost': 3,
                'plain_bytes': {'policy': 32 * MIB}}
        path = self.write('log', summary(window=8, plain={'policy': 2}, **told))
        op = self.report(path)['ops']['reduce_scatter']
        self.assertEqual(op['observed'], {'symmetric_calls': 7, 'plain_calls': 2, 'mismatched_calls': 1})
        self.assertEqual(op['plain_bytes'], {'policy': 32 * MIB})
        done = self.run_tool('report', path)
        text = done.stdout
        self.assertEqual(done.stderr, 'symmshim report: MISMATCH: 1 reduce_scatter calls were put on windows, and NCCL '
                                      'made them on plain kernels\n')
        self.assertIn('8 calls arranged, 7 seen symmetric, 2 seen plain, 1 not told', text)
        self.assertIn('MISMATCH: 1 reduce_scatter calls', text)
        self.assertIn('3 lines of the logs could not be written', text)

    def test_what_nccl_was_seen_to_do_call_by_call(self):
        calls = [call(seq=1, observed='plain'), call(seq=2, observed='symmetric'), call(seq=3, observed=None),
                 call(seq=4, path='plain', reason='policy', observed='plain')]
        op = self.report(self.write('log', ''.join(calls)))['ops']['reduce_scatter']
        self.assertEqual(op['observed'], {'symmetric_calls': 1, 'plain_calls': 2, 'mismatched_calls': 1})

    def test_nothing_seen_is_no_mismatch(self):
        text = self.run_tool('report', self.write('log', summary())).stdout
        self.assertNotIn('seen', text)
        self.assertNotIn('MISMATCH', text)

    def test_nearly_all_is_not_all(self):
        text = '{"schema":1,"event":"summary","pid":1,"comm":"a","op":"all_reduce","calls":100000,"bytes":1,' \
               '"window_calls":99999,"window_bytes":1,"plain":{"paused":1}}\n'
        path = self.write('log', text)
        self.assertIn('99.9 %', self.run_tool('report', path).stdout)
        self.assertEqual(self.run_tool('report', '--require', 'all_reduce>=100', path).returncode, 1)

    def test_killed_process(self):
        done = self.run_tool('report', '--json', data('audit_killed.jsonl'), data('audit_rank0.jsonl'))
        ops = json.loads(done.stdout)['ops']
        self.assertEqual(ops['all_gather'].pop('paths')['window']['calls'], 101)
        self.assertEqual(ops['all_gather'], {
            'calls': 102, 'bytes': 103 * MIB, 'symmetric_calls': 101, 'symmetric_bytes': 102 * MIB,
            'symmetric_percent': 100 * 101 / 102, 'plain': {'not_in_arena': 1},
            'plain_bytes': {'not_in_arena': MIB}, 'observed': None, 'incomplete': True})
        self.assertEqual(ops['reduce_scatter']['symmetric_calls'], 31)
        self.assertIn('symmshim report: 1 line skipped; a last line is cut off', done.stderr)
        self.assertIn('all_gather: incomplete: 1 communicator in processes', done.stderr)
        self.assertIn('incomplete', self.run_tool('report', data('audit_killed.jsonl')).stdout)

    def test_malformed_lines(self):
        done = self.run_tool('report', '--json', data('audit_malformed.jsonl'))
        self.expect(done, 0, out='{', err='symmshim report: 16 lines skipped\n')
        answer = json.loads(done.stdout)
        self.assertEqual(answer['skipped_lines'], 16)
        self.assertEqual(answer['ops']['all_gather']['calls'], 4)
        self.assertEqual(answer['ops']['all_gather']['plain'], {'policy': 2})

    def test_long_lines(self):
        with open(data('audit_rank0.jsonl'), encoding='utf-8') as file:
            lines = file.read()
        fits = '{"schema":1,"event":"x","a":"' + 'a' * 65000 + '"}\n'
        path = self.write('log', fits + '{"a":"' + 'b' * 200000 + '"}\n' + lines)
        answer = self.report(path)
        self.assertEqual(answer['skipped_lines'], 1)
        self.assertEqual(answer['ops']['all_gather']['calls'], 100)

    def test_nul_bytes(self):
        with open(data('audit_rank0.jsonl'), encoding='utf-8') as file:
            lines = file.read()
        answer = self.report(self.write('log', '\0\0\0\n{"schema":1,\0}\n' + lines))
        self.assertEqual(answer['skipped_lines'], 2)
        self.assertEqual(answer['ops']['all_gather']['calls'], 100)

    def test_unknown_schemas(self):
        done = self.run_tool('report', data('audit_schema2.jsonl'))
        self.expect(done, 0, out='no calls', err='2 of them written in a schema that is not 1')
        self.assertIn('2 lines skipped', done.stderr)

    def test_empty_file(self):
        path = self.write('log', '')
        self.expect(self.run_tool('report', path), 0, out='no calls\n', err=f'{path}: no record in it')

    def test_unreadable_file(self):
        self.expect(self.run_tool('report', data('audit_rank0.jsonl'), 'absent'), 2, err='absent: No such file')
        self.expect(self.run_tool('report', self.folder), 2, err='Is a directory')

    def test_requirements(self):
        files = (data('audit_rank0.jsonl'), data('audit_rank1.jsonl'))

        def require(*requirements):
            args = [part for text in requirements for part in ('--require', text)]
            return self.run_tool('report', *args, *files)

        self.expect(require('all_gather>=99.5', 'reduce_scatter>=66'), 0, out='all_gather')
        self.expect(require('all_gather>=99.51'), 1, out='all_gather',
                    err='symmshim report: all_gather: 99.5 % symmetric (199 of 200 calls), 99.51 % required\n')
        done = require('all_gather>=0', 'reduce_scatter>=95.5', 'all_reduce>=0')
        self.expect(done, 1, out='all_gather', err='reduce_scatter: 66.6667 % symmetric')
        self.assertIn('all_reduce: no calls, 0 % required', done.stderr)
        self.expect(require('89.3'), 0, out='all_gather')
        self.expect(require('89.4'), 1, out='all_gather', err='all ops: 89.3103 % symmetric (259 of 290 calls), 89.4 %')
        for wrong in ('101', '-1', '', 'x', '9x', '1.2.3', 'all_gather', 'all_gather>100', 'all_to_all>=1', '>=1', 'all_gather>=', 'all_gather>=x',
                      'all_gather>=101', 'all_gather>=-1', 'all_gather>=1.2.3', 'all_gather>=nan', 'all_gather>=0x10'):
            self.expect(require(wrong), 2, err='symmshim report: --require')



class Depth(ToolTest):
    """What is said beyond the sums."""

    def report(self, *texts, status=0):
        files = [self.write(f'log{i}', text) for i, text in enumerate(texts)]
        done = self.run_tool('report', '--json', *files)
        self.assertEqual(done.returncode, status, done)
        self.text = self.run_tool('report', *files).stdout
        return json.loads(done.stdout)

    def test_paths(self):
        answer = self.report(summary(calls=10, window=3, plain={'policy': 5}, staged_calls=2, staged_bytes=2 * 16 * MIB))
        op = answer['ops']['reduce_scatter']
        self.assertEqual(op['paths'], {'window': {'calls': 3, 'bytes': 48 * MIB}, 'staged': {'calls': 2, 'bytes': 32 * MIB},
                                       'plain': {'calls': 5, 'bytes': 80 * MIB}})
        self.assertEqual((op['symmetric_calls'], op['symmetric_percent']), (5, 50.0))
        self.assertIn('2 staged', self.text)
        staged = call(path='staged', rewrite='pre_scale')
        self.assertEqual(self.report(staged)['ops']['reduce_scatter']['paths']['staged']['calls'], 1)

    def test_too_many_symmetric_calls_are_malformed(self):
        answer = self.report(summary(calls=3, window=2, staged_calls=2, staged_bytes=1))
        self.assertEqual((answer['skipped_lines'], answer['ops']['reduce_scatter']['calls']), (1, 0))

    def test_communicators(self):
        other = {'comm': OTHER, 'nranks': 4}
        answer = self.report(comm() + summary() + comm(**other, state='plain', reason='grown') +
                             summary(calls=4, window=0, plain={'grown': 4}, **other))
        first, second = answer['communicators']
        self.assertEqual((first['comm'], first['nccl'], first['ready_processes'], first['ops']['reduce_scatter']['calls']),
                         (COMM, '2.28.9', 1, 10))
        self.assertEqual((second['comm'], second['nranks'], second['plain_processes'], second['reason']),
                         (OTHER, 4, 1, 'grown'))
        self.assertEqual(second['ops']['reduce_scatter']['plain'], {'grown': 4})
        self.assertIn(f'{OTHER}  4 ranks, NCCL 2.28.9, plain on 1: grown', self.text)

    def test_where_ranks_differ(self):
        answer = self.report(summary(calls=10, window=8, plain={'peer_declined': 2}),
                             summary(1, calls=10, window=8, plain={'not_in_arena': 2}))
        found = {one['what']: (one['most'], one['least']) for one in answer['differences']}
        self.assertEqual(found, {'peer_declined': ({'rank': 0, 'calls': 2}, {'rank': 1, 'calls': 0}),
                                 'not_in_arena': ({'rank': 1, 'calls': 2}, {'rank': 0, 'calls': 0})})
        self.assertRegex(self.text, 'counts that differ between ranks\n.* not_in_arena +2 on rank 1, 0 on rank 0|not_in_arena +2 on rank 1')
        self.assertEqual(self.report(summary(), summary(1))['differences'], [])
        found = self.report(summary(calls=10), summary(1, calls=9, window=9))['differences']
        self.assertEqual([one['what'] for one in found], ['calls', 'symmetric'])

    def test_communicators_without_identity_are_not_compared(self):
        unseen = {'comm': '0' * 16, 'window': 0, 'plain': {'unknown_comm': 3}}
        self.assertEqual(self.report(summary(calls=3, **unseen), summary(1, calls=4, **unseen))['differences'], [])

    def test_setting_up(self):
        def window(rank):
            return line('window', rank, comm=COMM, segment=1, bytes=MIB, setup_ns=10 ** 8)

        answer = self.report(comm(0, 4 * 10 ** 8) + window(0) + summary(), comm(1, 6 * 10 ** 8) + window(1) + summary(1))
        setup = answer['setup']
        self.assertAlmostEqual(setup['child_s'], 1.0)
        self.assertAlmostEqual(setup['window_s'], 0.2)
        self.assertEqual(setup['slowest_rank'], 1)
        self.assertAlmostEqual(setup['slowest_s'], 0.7)
        self.assertEqual(setup['symmetric_calls_per_rank'], 10)
        # Halfway from 8 MiB to 32 MiB would be 20 MiB; 16 MiB is a third of the way.
        self.assertAlmostEqual(setup['estimated_gain_s'], 10 * (8.1 + (21 - 8.1) / 3) / 1e6)
        self.assertAlmostEqual(setup['break_even_calls'], 0.7 * 10 / setup['estimated_gain_s'])
        self.assertIn('rank 1 took longest: 0.700 s', self.text)
        self.assertIn('not repaid yet', self.text)
        self.report(comm(0, 1000) + summary(calls=1000, window=1000))
        self.assertIn('  repaid: about', self.text)
        self.report(comm(0, 1000) + summary(window=0, plain={'policy': 10}))
        self.assertIn('no call went symmetric', self.text)

    def test_what_would_gain_most(self):
        small = {'bytes': MIB, 'count': 1, 'redop': 'sum'}
        text = ''.join(call(seq=i, path='plain', reason='agree_timeout', **small) for i in range(1, 4)) + \
            call(seq=4, path='plain', reason='policy') + call(seq=5, path='plain', reason='dtype', dtype='int64')
        answer = self.report(text)
        self.assertEqual([(one['bytes'], one['reason'], one['plain_calls']) for one in answer['signatures']],
                         [(16 * MIB, 'policy', 1), (MIB, 'agree_timeout', 3)])
        self.assertAlmostEqual(answer['signatures'][1]['estimated_gain_s'], 3 * 3.6e-6)
        self.assertIn('raise agree_us', answer['signatures'][1]['advice'])
        self.assertIn(' 1  reduce_scatter avg bf16, 16 MiB: about 1 plain calls', self.text)
        self.assertNotIn('int64', self.text.split('what would gain most')[1])

    def test_only_ten_are_shown_and_the_best(self):
        text = ''.join(call(seq=i, path='plain', reason='policy', bytes=i * MIB) for i in range(1, 15))
        sizes = [one['bytes'] // MIB for one in self.report(text)['signatures']]
        self.assertEqual(sizes, list(range(14, 4, -1)))

    def test_a_log_of_changes_is_scaled_by_the_summaries(self):
        text = call(path='plain', reason='policy') + summary(calls=100, window=60, plain={'policy': 40})
        self.assertEqual(self.report(text)['signatures'][0]['plain_calls'], 40)

    def test_where_the_buffers_lay(self):
        differ = {'path': 'plain', 'reason': 'ranks_differ', 'seq': 17}
        answer = self.report(call(0, **differ), call(1, offset=148 * MIB, **differ))
        self.assertIn("at call 17 rank 1's buffer lies 148 MiB behind rank 0's", answer['signatures'][0]['why'])
        self.assertIn('148 MiB behind', ' '.join(self.text.split()))
        # All-gathers are touched in their output.
        place = {'segment': 3, 'offset': 0}
        answer = self.report(call(0, op='all_gather', send=place, **differ),
                             call(1, op='all_gather', send=place, recv={'segment': 4, 'offset': 0}, **differ))
        self.assertIn("rank 1's buffer lies in its segment 4, rank 0's in its segment 3", answer['signatures'][0]['why'])

    def test_only_places_of_the_same_call_are_compared(self):
        differ = {'path': 'plain', 'reason': 'ranks_differ'}
        answer = self.report(call(0, seq=17, **differ), call(1, seq=18, offset=148 * MIB, **differ))
        self.assertNotIn('148 MiB', answer['signatures'][0]['why'])

    def test_who_declines(self):
        answer = self.report(call(0, path='plain', reason='peer_declined'), call(1, path='plain', reason='not_in_arena'))
        self.assertEqual(answer['signatures'][0]['reason'], 'not_in_arena')
        self.assertIn('not_in_arena: rank 1 declines: a buffer does not lie', answer['signatures'][0]['why'])

    def test_every_reason_has_advice(self):
        with open(os.path.join(ROOT, 'shim/reason.h'), encoding='utf-8') as file:
            codes = re.findall(r'\bX\((\w+), "', file.read())
        page = self.write('log', summary(calls=len(codes), window=0, plain={code: 1 for code in codes}))
        self.run_tool('report', '--html', 'page.html', page)
        with open(os.path.join(self.folder, 'page.html'), encoding='utf-8') as file:
            html = file.read()
        for code in codes:
            self.assertTrue(re.search(rf'<code>{code}</code>[^\n]*\n<p class="note">[A-Z\'][^<]+\.</p>', html), code)

    def test_unknown_reasons(self):
        answer = self.report(call(path='plain', reason='bad_luck') + call(path='plain', reason='a\x1b[31m'))
        self.assertEqual(answer['ops']['reduce_scatter']['plain'], {'bad_luck': 1})
        self.assertEqual(answer['skipped_lines'], 1)
        self.assertNotIn('\x1b', self.text)

    def test_a_job_that_still_runs(self):
        """Its last summary is behind its calls, and its last line is not whole."""
        answer = self.report(''.join(call(seq=i) for i in range(1, 6)) + summary(calls=5, window=5) +
                             call(seq=6) + call(seq=7) + call(seq=8)[:60])
        self.assertEqual(answer['ops']['reduce_scatter']['calls'], 7)
        self.assertFalse(answer['ops']['reduce_scatter']['incomplete'])
        self.assertEqual((answer['skipped_lines'], answer['cut_off']), (1, True))

    def test_same_process_numbers_on_two_hosts(self):
        answer = self.report(summary(0, pid=5), summary(1, pid=5))
        self.assertEqual(answer['ops']['reduce_scatter']['calls'], 20)

    def test_endlessly_many_kinds_of_calls(self):
        log = self.write('log', ''.join(call(seq=i, count=i) for i in range(1, (16 << 10) + 4)))
        done = self.run_tool('report', log)
        self.expect(done, 0, out='reduce_scatter', err='more than 16384 kinds of calls: 3 calls are not in the list')

    def test_progress_on_terminals_only(self):
        path = os.path.join(self.folder, 'pipe')

        def write():
            with open(path, 'w', encoding='ascii') as pipe:
                for _ in range(3):
                    pipe.write(('x' * 60000 + '\n') * 90)
                    pipe.flush()
                    time.sleep(0.25)
                pipe.write(summary())

        def run(stderr):
            os.mkfifo(path)
            writer = threading.Thread(target=write)
            writer.start()
            done = subprocess.run([TOOL, 'report', path], stdout=subprocess.PIPE, stderr=stderr, check=False)
            writer.join()
            os.unlink(path)
            return done

        master, slave = pty.openpty()
        run(slave)
        os.close(slave)
        text = ''
        try:
            while True:
                text += os.read(master, 65536).decode()
        except OSError:  # the end of a terminal
            os.close(master)
        self.assertRegex(text, r'\r\x1b\[Kreading: [\d.]+ MiB of [\d.]+ MiB \(100 %\)')
        self.assertRegex(text, r'\r\x1b\[K[^\r]*\r?\n?.*270 lines skipped')
        self.assertNotIn(b'reading', run(subprocess.PIPE).stderr)


class Page(ToolTest):
    def page(self, text):
        done = self.run_tool('report', '--html', 'page.html', self.write('log', text))
        self.assertEqual(done.returncode, 0, done)
        with open(os.path.join(self.folder, 'page.html'), encoding='utf-8') as file:
            return file.read()

    def job(self):
        text = line('start', host='node<1>', version='0.1.0', mode='on', policy=None) + comm(setup_ns=10 ** 8)
        for i in range(1, 200):
            plain = {'path': 'plain', 'reason': 'ranks_differ'} if i < 50 else {}
            text += call(seq=i, after=i / 2, **plain)
        return text + summary(calls=199, window=150, plain={'ranks_differ': 49})

    def test_has_what_it_must(self):
        html = self.page(self.job())
        for heading in ('Calls by op', 'Coverage over time', 'Bytes by path', 'Why calls stayed plain', 'Setting up',
                        'What would gain most', 'Counts that differ between ranks', 'Communicators'):
            self.assertIn(f'<h2>{heading}</h2>', html)
        self.assertIn('<b>75.4 %</b><span>of all calls went symmetric', html)
        self.assertIn('<td class="n">150</td>', html)
        self.assertEqual(html.count('<svg '), 1)
        columns = re.findall(r'<title>([\d.]+) s: (\d+) of (\d+) calls symmetric', html)
        self.assertGreater(len(columns), 50)
        self.assertLessEqual(len(columns), 120)
        self.assertEqual([sum(int(column[i]) for column in columns) for i in (1, 2)], [150, 199])
        self.assertIn('prefers-color-scheme: dark', html)
        self.assertIn('name="viewport"', html)

    def test_loads_nothing(self):
        html = self.page(self.job())
        self.assertIsNone(re.search(r'<script|<link|<img|<iframe|@import|url\(|src=|href=|https?:', html))
        self.assertIn("default-src 'none'", html)

    @unittest.skipUnless(html5lib, 'python3-html5lib is not installed')
    def test_is_well_formed(self):
        for text in (self.job(), '', summary(window=0, plain={'policy': 10})):
            html5lib.HTMLParser(strict=True).parse(self.page(text))

    def test_what_a_log_says_is_text(self):
        bad = '<script>&"'
        html = self.page(call(path='plain', reason=bad, dtype=bad, redop=bad, comm='<i>') + comm(comm='<i>', nccl='<u>'))
        self.assertNotRegex(html, r'<script|<i>|<u>')
        self.assertIn('&lt;script&gt;&amp;&quot;', html)

    def test_time_goes_on_whatever_the_order(self):
        for times in ((0, 0.1, 5, 4000), (4000, 0, 5, 3), (10 ** 8, 0)):
            html = self.page(''.join(call(seq=i + 1, after=after) for i, after in enumerate(times)))
            columns = re.findall(r'<title>([\d.]+) s: (\d+) of \d+', html)
            self.assertEqual(sum(int(column[1]) for column in columns), len(times))
            spans = [float(column[0]) for column in columns]
            self.assertEqual(spans, sorted(spans))
            self.assertLess(max(spans) - (max(times) - min(times)), max(spans) / 50 + 1)

    def test_the_summaries_serve_where_calls_are_few(self):
        text = call() + summary(calls=50, window=0, plain={'policy': 50}, after=1) + \
            summary(calls=90, window=40, plain={'policy': 50}, after=61)
        columns = re.findall(r'<title>[\d.]+ s: (\d+) of (\d+)', self.page(text))
        self.assertEqual(columns, [('0', '50'), ('40', '40')])

    def test_cannot_be_written(self):
        log = self.write('log', self.job())
        self.expect(self.run_tool('report', '--html', 'absent/page', log), 2, out='reduce_scatter',
                    err='symmshim report: absent/page: cannot be written: No such file')
        self.expect(self.run_tool('report', '--html', '/dev/full', log), 2, out='reduce_scatter', err='/dev/full: cannot')


class Observed(ToolTest):
    """What NCCL was seen to do, in the forms for eyes."""

    def write_all(self, text):
        log = self.write('log', text)
        self.assertEqual(self.run_tool('report', '--html', 'page.html', '--trace', 'trace', log).returncode, 0)
        with open(os.path.join(self.folder, 'page.html'), encoding='utf-8') as file, \
                open(os.path.join(self.folder, 'trace'), encoding='utf-8') as trace:
            return file.read(), [event for event in json.load(trace)['traceEvents'] if event['ph'] != 'M']

    def test_page_and_trace_have_it(self):
        html, events = self.write_all(call(seq=1, observed='symmetric') + call(seq=2) +
                                      call(seq=3, path='plain', reason='policy', observed='plain'))
        self.assertIn('<h2>What NCCL was seen to do</h2>', html)
        row = '</td><td class="n">'.join(['<tr><td><code>reduce_scatter</code>', '2', '1', '1', '1', '0</td></tr>'])
        self.assertIn(row, html)
        self.assertNotIn('MISMATCH', html)
        self.assertEqual([event['name'] for event in events], [
            'reduce_scatter window, seen symmetric', 'reduce_scatter window', 'reduce_scatter plain: policy, seen plain'])

    def test_a_mismatch_is_loud(self):
        html, events = self.write_all(call(seq=1, observed='plain') + call(seq=2, observed='symmetric'))
        self.assertIn('<p class="alarm" role="alert"><b>MISMATCH:</b> 1 <code>reduce_scatter</code> calls', html)
        self.assertLess(html.index('MISMATCH'), html.index('class="tiles"'))
        self.assertIn('<td class="n alarm">1</td>', html)
        name = 'reduce_scatter window, seen plain: MISMATCH'
        self.assertEqual([(event['ph'], event['name']) for event in events], [
            ('i', name), ('X', name), ('X', 'reduce_scatter window, seen symmetric')])
        self.assertEqual((events[0]['s'], events[0]['cat']), ('p', 'symmshim_mismatch'))
        self.assertAlmostEqual(events[0]['ts'], events[1]['ts'] + events[1]['dur'], places=2)

    def test_nothing_where_nccl_was_not_asked(self):
        html, events = self.write_all(call() + summary())
        self.assertNotIn('was seen to do', html)
        self.assertEqual([event['name'] for event in events], ['reduce_scatter window'])


class Forecast(ToolTest):
    """What the logs of an audit-only run say of a real one; tests/preload/cases_forecast.py has real logs."""

    def forecast(self, *texts):
        done = self.run_tool('report', '--json', *(self.write(f'log{i}', text) for i, text in enumerate(texts)))
        self.assertEqual(done.returncode, 0, done)
        return json.loads(done.stdout)['forecast']

    def outcomes(self, *texts):
        found = {}
        for one in self.forecast(*texts)['calls']:
            for key, number in {**one['plain'], 'window': one['window_calls'], 'staged': one['staged_calls']}.items():
                found[key] = found.get(key, 0) + number
        return {key: number for key, number in found.items() if number}

    def ranks(self, *calls):
        """A log for each rank: of each call a pair of members, or members for both."""
        texts = [watching(rank) for rank in (0, 1)]
        for i, members in enumerate(calls):
            for rank in (0, 1):
                one = members[rank] if isinstance(members, tuple) else members
                texts[rank] += watched(rank, i + 1, **one) if one is not None else ''
        return texts

    def test_alike(self):
        texts = self.ranks({}, {}, {'offset': 512})
        self.assertEqual(self.outcomes(*texts), {'window': 6})
        one = self.forecast(*texts)
        self.assertEqual((one['unforeseen_calls'], one['absent_ranks']), (0, 0))
        op = one['ops']['reduce_scatter']
        self.assertEqual((op['calls'], op['symmetric_calls'], op['symmetric_bytes']), (6, 6, 96 * MIB))
        self.assertEqual(op['paths']['window'], {'calls': 6, 'bytes': 96 * MIB})
        kind = one['calls'][0]
        self.assertEqual((kind['op'], kind['dtype'], kind['redop'], kind['count'], kind['bytes'], kind['capture']),
                         ('reduce_scatter', 'bf16', 'avg', 4 * MIB, 16 * MIB, False))

    def test_other_numbers_of_segments_are_the_same_windows(self):
        self.assertEqual(self.outcomes(*self.ranks(({'segment': 1}, {'segment': 7}), ({'segment': 1}, {'segment': 7}))),
                         {'window': 4})

    def test_differing(self):
        self.assertEqual(self.outcomes(*self.ranks({}, ({}, {'offset': 512}), {})), {'window': 4, 'ranks_differ': 2})
        self.assertEqual(self.outcomes(*self.ranks(({}, {'segment_bytes': 32 * MIB}))), {'ranks_differ': 2})
        self.assertEqual(self.outcomes(*self.ranks({}, {'segment': 5}, ({}, {'segment': 5}))),
                         {'window': 4, 'ranks_differ': 2})

    def test_one_declines(self):
        self.assertEqual(self.outcomes(*self.ranks(({}, {'reason': 'not_in_arena'}))),
                         {'peer_declined': 1, 'not_in_arena': 1})

    def test_all_have_a_reason_of_their_own(self):
        self.assertEqual(self.outcomes(*self.ranks({'reason': 'policy'}, {'reason': 'in_group'})),
                         {'policy': 2, 'in_group': 2})

    def test_captured(self):
        """Once there is a window it can be used in a capture; before, it cannot be made."""
        self.assertEqual(self.outcomes(*self.ranks({'capture': True}, {}, {'capture': True})),
                         {'capturing': 2, 'window': 4})

    def test_slots(self):
        self.assertEqual(self.outcomes(*self.ranks(({'path': 'staged'}, {'path': 'staged', 'offset': 512}))),
                         {'staged': 2})
        # two of 64 MiB are more than stage_max
        large = {'path': 'staged', 'bytes': 48 * MIB}
        self.assertEqual(self.outcomes(*self.ranks((large, {**large, 'offset': 512}))), {'no_slot': 2})
        self.assertEqual(self.outcomes(*self.ranks(({'path': 'staged'}, {}))), {'ranks_differ': 2})
        self.assertEqual(self.outcomes(*self.ranks(({'path': 'staged'}, {'path': 'staged', 'send': 'not_in_arena'}))),
                         {'staged': 2})

    def test_an_output_that_one_rank_copies(self):
        """A reduce-scatter's, out of a slot; which has to be there."""
        slot, own = ({'path': 'staged'}, {'path': 'staged', 'offset': 512}), {'path': 'staged', 'recv': 'not_in_arena'}
        self.assertEqual(self.outcomes(*self.ranks({'path': 'staged'}, slot, (own, {'path': 'staged'}))),
                         {'window': 4, 'staged': 2})
        self.assertEqual(self.outcomes(*self.ranks({'path': 'staged'}, (own, {'path': 'staged'}))),
                         {'window': 2, 'staged': 2})

    def test_as_many_windows_as_there_may_be(self):
        calls = [{'segment': 3 + i, 'recv': None} for i in range(1030)]
        found = self.outcomes(*self.ranks(*calls))
        self.assertEqual(set(found), {'window', 'no_window_room'})
        self.assertEqual(found['window'], 2 * 1022)

    def test_communicators_that_cannot_agree(self):
        for other, reasons in (({'compatibility': '3' * 16}, {'shim_differs': 2}), ({'board': '3' * 16},
                               {'missing_ranks': 2})):
            self.assertEqual(self.outcomes(watching(0) + watched(0), watching(1, **other) + watched(1)), reasons)
        self.assertEqual(self.outcomes(watching(0) + watched(0), watching(1, reason='grown') + watched(1, reason='grown')),
                         {'missing_ranks': 1, 'grown': 1})
        twice = watching(0) + comm(0, comm_rank=1, forecast=json.loads(watching(0).splitlines()[1])['forecast'])
        self.assertEqual(self.outcomes(twice + watched(0) + watched(0)), {'same_process': 2})

    def test_communicators_without_identity_are_not_compared(self):
        nobody = {'comm': '0' * 16}
        self.assertEqual(self.outcomes(watching(0, reason='unknown_comm', **nobody) +
                                       watched(0, seq=1, reason='unknown_comm', **nobody),
                                       watched(1, seq=5, reason='unknown_comm', **nobody)), {'unknown_comm': 2})

    def test_calls_that_a_log_lacks(self):
        texts = self.ranks({}, ({}, None), {})
        self.assertEqual(self.outcomes(*texts), {'window': 4})
        self.assertEqual(self.forecast(*texts)['unforeseen_calls'], 1)
        self.assertIn('not foreseen: 1 calls, which not every', self.run_tool('report', 'log0', 'log1').stdout)
        # which are not said to be plain for a reason, either
        signatures = json.loads(self.run_tool('report', '--json', 'log0', 'log1').stdout)['signatures']
        self.assertEqual([(one['reason'], one['plain_calls']) for one in signatures], [('audit_only', 1)])

    def test_a_log_that_is_missing(self):
        texts = self.ranks({})
        self.assertEqual(self.forecast(texts[1])['absent_ranks'], 1)
        self.assertIn('there is no log of 1 rank, taken to do as the others', self.run_tool('report', 'log0').stdout)

    def test_too_many_calls(self):
        texts = [watching() + ''.join(watched(seq=i + 1) for i in range(65540))]
        one = self.forecast(*texts)
        self.assertEqual((one['ops']['reduce_scatter']['calls'], one['unforeseen_calls']), (65536, 4))

    def test_without_single_calls(self):
        path = self.write('log', line('start', mode='audit', host='a') + summary(window=0, plain={'audit_only': 10}))
        self.assertIsNone(json.loads(self.run_tool('report', '--json', path).stdout)['forecast'])
        self.assertIn('nothing is foreseen, since the logs have no single calls', self.run_tool('report', path).stdout)

    def test_real_runs_have_none(self):
        path = self.write('log', call(forecast=None) + summary())
        self.assertIsNone(json.loads(self.run_tool('report', '--json', path).stdout)['forecast'])
        self.assertNotIn('dry run', self.run_tool('report', path).stdout)

    def test_malformed(self):
        """Numbers that make no sense, and words that are none."""
        for forecast in ({}, [], 'window', {'path': 7}, {'reason': ''}, {'path': 'x', 'send': 'y' * 99}):
            self.forecast(watching() + watched(forecast=forecast) + watched(seq=0) + watched(seq=-1) +
                          watched(seq=9) + watched(seq=2) + watched(seq=2))

    def test_for_people(self):
        texts = self.ranks({}, {}, ({}, {'offset': 4096}))
        paths = [self.write(f'log{i}', text) for i, text in enumerate(texts)]
        done = self.run_tool('report', '--html', 'page.html', *paths)
        text = done.stdout
        self.assertIn('dry run: what would become of these calls without SYMMSHIM=audit', text)
        self.assertRegex(text, r'(?m)^reduce_scatter +6 +96 MiB +4 +66\.7 % +64 MiB\n  ranks_differ +2 +33\.3 %$')
        self.assertRegex(text, r'(?m)^ 1  reduce_scatter avg bf16, 16 MiB: 4 of 6 calls, about \S+ ms a rank$')
        self.assertIn("at call 3 rank 1's buffer lies 4 KiB behind rank 0's", ' '.join(text.split()))
        with open(os.path.join(self.folder, 'page.html'), encoding='utf-8') as file:
            html = file.read()
        self.assertIn('<h2>Dry run: what would become of these calls without SYMMSHIM=audit</h2>', html)
        self.assertIn('<b>66.7 %</b><span>would go symmetric', html)
        self.assertIn('<tr><td>reduce_scatter avg bf16, 16 MiB</td><td class="n">6</td><td class="n">4</td>', html)
        if html5lib:
            html5lib.HTMLParser(strict=True).parse(html)

    def test_what_is_required_is_what_was_done(self):
        texts = self.ranks({})
        paths = [self.write(f'log{i}', text) for i, text in enumerate(texts)]
        self.assertEqual(self.run_tool('report', '--require', '1', *paths).returncode, 1)

    def test_a_log_that_was_put_aside(self):
        """Two files of one rank: the ranks are still two."""
        texts = self.ranks({}, {})
        halves = [text.splitlines(keepends=True) for text in texts]
        self.assertEqual(self.outcomes(*(''.join(lines[:3]) for lines in halves), *(lines[3] for lines in halves)),
                         {'window': 4})


class Trace(ToolTest):
    def trace(self, *texts):
        files = [self.write(f'log{i}', text) for i, text in enumerate(texts)]
        self.assertEqual(self.run_tool('report', '--trace', 'trace.json', *files).returncode, 0)
        with open(os.path.join(self.folder, 'trace.json'), encoding='utf-8') as file:
            return json.load(file)

    def test_on_the_clock_of_pytorch(self):
        trace = self.trace(comm(after=0.5, setup_ns=10 ** 8) + call(after=1.25, host_ns=4500))
        base = trace['baseTimeNanoseconds']
        self.assertEqual(base, START // QUARTER * QUARTER * 10 ** 9)
        slices = [event for event in trace['traceEvents'] if event['ph'] == 'X']
        self.assertEqual([event['name'] for event in slices], ['set up communicator', 'reduce_scatter window'])
        for event, end, length in zip(slices, (0.5, 1.25), (10 ** 5, 4.5)):
            self.assertAlmostEqual(event['dur'], length)
            self.assertAlmostEqual(base / 1e3 + event['ts'] + event['dur'], (START + end) * 1e6, delta=1)
        self.assertEqual(slices[1]['args']['bytes'], 16 * MIB)

    def test_one_track_a_rank(self):
        trace = self.trace(call(0) + call(0, seq=2), call(1), call(2, pid=100, path='plain', reason='policy'))
        calls = [event for event in trace['traceEvents'] if event['ph'] == 'X']
        self.assertEqual(len({(event['pid'], event['tid']) for event in calls}), 3)
        self.assertEqual([event['pid'] for event in calls[:3]], [100, 100, 101])
        names = {(event['pid'], event['tid']): event['args']['name'] for event in trace['traceEvents']
                 if event['name'] == 'thread_name'}
        self.assertEqual([names[event['pid'], event['tid']] for event in calls],
                         ['symmshim rank 0'] * 2 + ['symmshim rank 1', 'symmshim rank 2'])
        self.assertEqual(calls[3]['name'], 'reduce_scatter plain: policy')

    def test_without_calls(self):
        self.assertEqual(self.trace('')['traceEvents'], [])
        self.assertEqual(self.trace(call(after=-START))['traceEvents'], [])

    def test_cannot_be_written(self):
        self.expect(self.run_tool('report', '--trace', 'absent/trace', self.write('log', call())), 2,
                    err='absent/trace: cannot be written: No such file')
        self.expect(self.run_tool('report', '--trace', '/dev/full', self.write('log', call())), 2, err='/dev/full: cannot')


if __name__ == '__main__':
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
