import json
import os

import pytest

from configs.common import strict_json
from configs.common.errors import UserError
from configs.common.strict_json import parse_json, read_json_file, read_json_lines

REFUSED = {
    "": "is not JSON: line 1, column 1: Expecting value",
    '{"a": [1,\n2}': "is not JSON: line 2, column 2: Expecting ',' delimiter",
    '{"a": 1, "b": {"c": 1, "d": 2, "c": 3}}': "has the key 'c' more than once in one object",
    '{"1": 2,\n"a": ' + "1" * 5000 + "}": f"line 2, column 6: {'1' * 24}... has 5000 digits; a whole number goes up",
    "[-9223372036854775809]": "line 1, column 2: -9223372036854775809 has 19 digits",
    '["NaN", "a\\"",\n  NaN]': "line 2, column 3: NaN is not a finite number",
    "[-Infinity]": "line 1, column 2: -Infinity is not a finite number",
    "[1e999]": "line 1, column 2: 1e999 is not a finite number",
    "[1, NaN0.5]": "line 1, column 5: NaN is not a finite number",
    "[" * 100_000: "nests lists or objects too deeply",
    '{"a":' * 100_000: "nests lists or objects too deeply",
    '["\\uD800"]': "half of a surrogate pair",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:12])
def test_what_is_refused_is_named_in_one_line(text):
    with pytest.raises(UserError) as caught:
        parse_json(text, "the plan")
    message = str(caught.value)
    assert message.startswith("the plan") and REFUSED[text] in message
    assert len(message) < 150 and message.isprintable()


def test_everything_else_is_what_the_parser_of_python_returns():
    document = {"a": [1, -(2**63) + 1, 2**63 - 1, 0.5, -1e300, None, True, ""], "b": {"a": '\U0001f600 NaN \\ " é'}}
    for text in (json.dumps(document), json.dumps(document, ensure_ascii=False, indent=1)):
        assert parse_json(text, "the plan") == parse_json(text.encode(), "the plan") == document
    assert str(parse_json("[NaN, -Infinity, 1e999]", "a line", finite=False)) == "[nan, -inf, inf]"


def test_a_file_is_named_with_the_byte_at_fault(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    with pytest.raises(UserError, match="plan.json cannot be read: No such file"):
        read_json_file(path)
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_json_file(tmp_path)
    path.write_bytes(b'{"name": "caf\xe9"}')
    with pytest.raises(UserError, match="plan.json is not UTF-8: byte 13 is 0xe9"):
        read_json_file(path)
    path.touch()
    os.truncate(path, strict_json.MAX_BYTES + 1)  # a sparse file
    with pytest.raises(UserError, match=f"plan.json is too large: it has more than {strict_json.MAX_BYTES} bytes"):
        read_json_file(path)
    monkeypatch.setattr(strict_json, "MAX_BYTES", 8)
    with pytest.raises(UserError, match="the plan is too large: 9 bytes"):
        parse_json("123456789", "the plan")


def test_lines_are_numbered_and_an_unfinished_last_one_is_left_out(tmp_path, monkeypatch):
    path = tmp_path / "lines.jsonl"
    assert list(read_json_lines(path)) == []
    path.write_bytes(b'{"a": 1}\n[2]\n{"a": \xc3')
    assert list(read_json_lines(path)) == [(1, {"a": 1}), (2, [2])]
    path.write_bytes(b"1\n\n3\n")
    with pytest.raises(UserError, match=r"lines.jsonl:2 is not JSON"):
        list(read_json_lines(path))
    monkeypatch.setattr(strict_json, "MAX_BYTES", 8)
    path.write_bytes(b"1\n" + b" " * 20 + b"1\n")
    with pytest.raises(UserError, match=r"lines.jsonl:2 is too large"):
        list(read_json_lines(path))
