"""JSON for people: it reads back as it was, short things on one line, long ones with an entry a line."""

import json

from hypothesis import given
from hypothesis import strategies as st

from sharding.plans.text.json_text import LINE, json_text

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=40,
)


@given(DOCUMENTS)
def test_any_document_reads_back(document):
    assert json.loads(json_text(document)) == document


def test_long_objects_have_an_entry_a_line_and_lists_of_numbers_are_not_divided():
    document = {"short": {"a": [{"b": 1}]}, "numbers": list(range(LINE)), "long": [{"c": "x" * 60}, {"d": "y" * 60}]}
    assert json_text(document).splitlines() == [
        "{",
        '  "short": {"a": [{"b": 1}]},',
        f'  "numbers": {json.dumps(list(range(LINE)))},',
        '  "long": [',
        f'    {{"c": "{"x" * 60}"}},',
        f'    {{"d": "{"y" * 60}"}}',
        "  ]",
        "}",
    ]
