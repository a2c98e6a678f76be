# SPDX-License-Identifier: Apache-2.0
"""The schema of the audit log against what it is the schema of: the shim's lists, and the manual page.

Usage: schema_audit.py SOURCE_ROOT
"""
import json
import os
import re
import sys
import unittest

ROOT = os.path.abspath(sys.argv[1])
sys.path.insert(0, os.path.join(ROOT, 'tests/preload'))
import schema  # noqa: E402 pylint: disable=wrong-import-position

COMMON = {'schema', 'event', 'time', 'pid', 'rank'}


def page(path):
    with open(os.path.join(ROOT, path), encoding='utf-8') as file:
        return file.read()


def section(name):
    """Of the manual page, up to the next one."""
    return re.split(r'\n\.S[sh] ', page('tools/symmshim-audit.5').split(f'.Ss {name}\n')[1])[0]


def example(name):
    return json.loads(section(name).split('.Bd -literal\n')[1].split('.Ed')[0].replace('\n ', ''))


class Lists(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.defs = schema.load()['$defs']
        self.events = [one['$ref'].rpartition('/')[2] for one in schema.load()['oneOf']]

    def words(self, name):
        return re.findall(r'X\((\w+)\)', re.search(rf'#define POLICY_{name}\(X\)((.*\\\n)*.*)', page('policy/policy.h'))[1])

    def test_reasons_are_the_shims(self):
        codes = re.findall(r'\bX\((\w+), "', page('shim/reason.h'))
        self.assertGreater(len(codes), 30)
        self.assertEqual(self.defs['reason']['enum'], codes)

    def test_words_are_the_policys(self):
        call = self.defs['call']['properties']
        self.assertEqual(self.defs['op']['enum'], self.words('OPS'))
        self.assertEqual(call['dtype']['enum'], self.words('DTYPES') + [None])
        self.assertEqual(call['redop']['enum'], [word for word in self.words('REDOPS') if word != 'none'] + [None])
        self.assertLessEqual(set(self.words('PATHS')), set(call['path']['enum']))
        self.assertLessEqual(set(self.words('REWRITES')) - {'none'}, set(call['rewrite']['enum']))

    def test_every_member_of_every_line_is_the_shims(self):
        """audit.c writes these names and no others."""
        written = set(re.findall(r'\\"(\w+)\\":', page('shim/audit.c')))
        written |= set(re.findall(r'add_(?:string|place)\(&?line, "(\w+)"', page('shim/audit.c')))
        known = {name for event in self.events for name in self.defs[event]['properties']}
        for name in ('place', 'comm_forecast', 'call_forecast'):
            known |= set(self.defs[name]['properties'])
        self.assertGreater(len(written), 25)
        self.assertLessEqual(written, known)

    def test_nothing_else_is_allowed(self):
        for event in self.events:
            self.assertIs(self.defs[event]['additionalProperties'], False, event)
            self.assertLessEqual(COMMON, set(self.defs[event]['required']), event)

    def test_the_page_has_every_event_and_member(self):
        page_events = re.findall(r'^\.Ss (\w+)$', page('tools/symmshim-audit.5'), re.M)
        self.assertEqual([event for event in page_events if event != 'Form'], self.events)
        for event in self.events:
            items = re.findall(r'^\.It Li (.*)$', section(event), re.M)
            named = {word for item in items for word in item.split(' , ')}
            self.assertEqual(named, set(self.defs[event]['properties']) - COMMON, event)

    def test_the_page_has_every_member_of_a_forecast(self):
        text = page('tools/symmshim-audit.5').split('.Sh DRY RUN\n')[1].split('.Sh ')[0]
        named = {word for item in re.findall(r'^\.It Li (.*)$', text, re.M) for word in item.split(' , ')}
        self.assertEqual(named, {key for name in ('comm_forecast', 'call_forecast')
                                 for key in self.defs[name]['properties']})

    def test_the_page_has_every_word(self):
        call = self.defs['call']['properties']
        for key in ('path', 'rewrite'):
            for word in call[key]['enum']:
                self.assertIn(f'.Dq {word}' if word else 'null', section('call'), key)


@unittest.skipIf(schema.MISSING, schema.MISSING)
class Validator(unittest.TestCase):
    def good(self, line):
        self.assertIsNone(schema.problem(line))

    def bad(self, line, text, **changes):
        self.assertIn(text, schema.problem({**line, **changes}) or 'nothing wrong')

    def test_the_examples_are_good(self):
        for event in ('start', 'comm', 'library', 'window', 'drop', 'call', 'summary'):
            self.good(example(event))
            self.assertEqual(example(event)['event'], event)

    def test_every_member_is_needed(self):
        for event in ('start', 'comm', 'library', 'window', 'drop', 'call', 'summary'):
            for member in set(example(event)) - {'staged_calls', 'staged_bytes', 'event'}:
                line = example(event)
                del line[member]
                self.bad(line, f"'{member}' is a required property")

    def test_what_is_wrong_is_named(self):
        call = example('call')
        self.bad(call, "'more' was unexpected", more=1)
        self.bad(call, 'path: ', path='copy_engine')
        self.bad(call, 'reason: ', reason='policy')
        self.bad(call, 'reason: ', path='plain')
        self.bad(call, "reason: 'bad_luck'", path='plain', reason='bad_luck')
        self.bad(call, 'seq: ', seq=0)
        self.bad(call, 'rank: ', rank=-1)
        self.bad(call, 'rank: ', rank=True)
        self.bad(call, 'host_ns: ', host_ns=1.5)
        self.bad(call, 'comm: ', comm='5BE1A6F0C2D37E94')
        self.bad(call, 'send.segment: ', send={'segment': 0, 'offset': 0})
        self.bad(call, 'no event', event='calls')
        self.bad(example('comm'), 'reason: ', state='plain')
        self.bad(example('summary'), "'luck' is not one of", plain={'luck': 1})
        self.bad(example('summary'), "'staged_bytes' is a dependency of 'staged_calls'", staged_calls=1)

    def test_a_dry_run(self):
        forecast = {'path': 'staged', 'rewrite': None, 'reason': None, 'send': None, 'recv': 'not_in_arena'}
        call = {**example('call'), 'path': 'plain', 'rewrite': None, 'reason': 'audit_only', 'forecast': forecast,
                'recv': {'segment': 1, 'offset': 0, 'bytes': 2097152}}
        self.good(call)
        self.bad(call, 'forecast.path: ', forecast={**forecast, 'path': 'copy_engine'})
        self.bad(call, 'forecast.recv: ', forecast={**forecast, 'recv': 'bad_luck'})
        self.bad(call, "'rewrite' is a required property", forecast={'path': 'plain'})
        self.bad(call, 'recv.bytes: ', recv={'segment': 1, 'offset': 0, 'bytes': 0})
        state = {'state': 'plain', 'reason': 'grown', 'compatibility': '0' * 16, 'board': 'f' * 16, 'stage_max': 0}
        self.good({**example('comm'), 'forecast': state})
        self.bad(example('comm'), 'forecast.board: ', forecast={**state, 'board': '/dev/shm'})

    def test_words_to_come_are_good(self):
        self.good({**example('call'), 'path': 'staged', 'rewrite': 'pre_scale'})
        self.good({**example('summary'), 'staged_calls': 1, 'staged_bytes': 7})

    def test_a_verdict_is_not_kept_for_another_line(self):
        self.good(example('call'))
        self.bad(example('call'), 'seq: ', seq=2.5)
        self.good({**example('call'), 'seq': 2})

    def test_the_whole_schema_says_the_same(self):
        """What problem() takes apart, to be quick."""
        whole = schema.jsonschema.Draft202012Validator(schema.load())
        for event in ('start', 'comm', 'library', 'window', 'drop', 'call', 'summary'):
            self.assertTrue(whole.is_valid(example(event)))
            self.assertFalse(whole.is_valid({**example(event), 'more': 1}))


if __name__ == '__main__':
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
