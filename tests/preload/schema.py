# SPDX-License-Identifier: Apache-2.0
"""Lines of the audit log against tools/symmshim-audit.schema.json, thousands of them in a second.

    problem = schema.problem(line)   # None, or what is wrong with the parsed line
    schema.MISSING                   # why nothing can be said, or None
"""

import json
import os

try:
    import jsonschema
    MISSING = None
except ImportError:
    jsonschema = None
    MISSING = "python3-jsonschema is not installed"

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/symmshim-audit.schema.json")


def load():
    with open(PATH, encoding="utf-8") as file:
        return json.load(file)


def _inline(node, definitions):
    """References cost the validator more than all the rest."""
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {key: _inline(value, definitions) for key, value in node.items()}


def _validators():
    """One for each event: of five alternatives a validator would try all, and could not say which was meant."""
    root = load()
    cls = jsonschema.Draft202012Validator
    cls.check_schema(root)
    events = [alternative["$ref"].rpartition("/")[2] for alternative in root["oneOf"]]
    return {event: cls(_inline(root["$defs"][event], root["$defs"])) for event in events}


_compiled = None
_good = set()


def _shape(value):
    """What the verdict depends on: numbers from 2 on are alike to the schema but for their type."""
    if isinstance(value, dict):
        return tuple((key, _shape(member)) for key, member in value.items())
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 2:
        return type(value)
    return (type(value), value if isinstance(value, (str, int, float, bool, type(None))) else repr(value))


def problem(line):
    """None when the line is as the schema says, or when there is no validator; else one line of text."""
    global _compiled  # pylint: disable=global-statement
    if MISSING:
        return None
    if _compiled is None:
        _compiled = _validators()
    if not isinstance(line, dict) or not isinstance(line.get("event"), str) or line["event"] not in _compiled:
        return f"no event of the schema: {line}"
    shape = _shape(line)
    if shape in _good:
        return None
    for error in _compiled[line["event"]].iter_errors(line):
        return f"{'.'.join(map(str, error.absolute_path)) or line['event']}: {error.message}: {line}"
    if len(_good) < 1 << 16:
        _good.add(shape)
    return None
