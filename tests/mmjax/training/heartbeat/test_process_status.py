import json

import hypothesis
import pytest
from hypothesis import strategies

from mmjax.training.heartbeat.process_status import LONGEST_STATUS, ProcessStatus, parse_status

STATUS = ProcessStatus(
    host="node1",
    phase="training",
    step=3,
    beat=9,
    op="hop a 0 -> b 0 of microbatch 2",
    idle=1.5,
    failure="ValueError: x",
    digests={"2": "0a"},
    window={"wall": 0.5},
)
FIELDS = json.loads(STATUS.to_json())
VALUES = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats() | strategies.text(),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner),
)


def test_a_status_is_read_as_it_was_written():
    assert parse_status(STATUS.to_json()) == STATUS


@hypothesis.given(strategies.text() | VALUES.map(json.dumps))
def test_other_texts_are_no_status(text):
    assert parse_status(text) is None


@hypothesis.given(strategies.integers(0, len(STATUS.to_json())), strategies.text(max_size=3))
def test_a_damaged_status_is_none_or_a_whole_one(place, inserted):
    text = STATUS.to_json()
    read = parse_status(text[:place] + inserted + text[place + 1 :])
    assert read is None or parse_status(read.to_json()) == read


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(FIELDS | {"step": "3"}),
        json.dumps(FIELDS | {"step": True}),
        json.dumps(FIELDS | {"phase": "sleeping"}),
        json.dumps(FIELDS | {"more": 1}),
        json.dumps(FIELDS | {"digests": {"2": 3}}),
        json.dumps(FIELDS | {"window": {"wall": "long"}}),
        json.dumps({name: FIELDS[name] for name in ("host", "phase", "step")}),
        json.dumps(FIELDS | {"host": "x" * LONGEST_STATUS}),
        "[" * LONGEST_STATUS,
        '{"step": ' + "9" * (LONGEST_STATUS - 10) + "}",
    ],
)
def test_what_is_no_status(text):
    assert parse_status(text) is None
