"""Long values are shortened wherever they are shown."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from configs.common.shown_text import shortened
from data.errors import BadSampleError, DataError


@given(st.text("ab", max_size=90), st.integers(4, 80))
def test_a_shortened_text_is_as_long_as_allowed_and_has_both_ends(text, characters):
    shown = shortened(text, characters)
    assert shown == text if len(text) <= characters else len(shown) <= characters
    assert shown[:1] == text[:1]
    if len(text) > characters >= 40:
        assert f"({len(text)} characters)" in shown and shown[-3:] == text[-3:] and shown[:10] == text[:10]


def test_each_line_of_an_error_of_data_is_cut_at_500_characters():
    for error in (DataError("x" * 10**6), BadSampleError("y" * 10**6, "x" * 10**6)):
        assert len(str(error)) <= 500 and len(str(pickle.loads(pickle.dumps(error)))) <= 500
    listed = DataError("\n".join(["short", "x" * 10**6, "last"]))
    first, second, last = str(listed).splitlines()
    assert (first, last) == ("short", "last") and len(second) <= 500


def test_an_error_of_a_sample_keeps_the_beginning_and_the_remedy():
    error = BadSampleError("data.json[3]", "the path " + "x" * 2_000_000)
    assert str(error).startswith("data.json[3] cannot be read (the path xxx")
    assert str(error).endswith("; replace or remove it")
    assert len(error.reason) <= 500
