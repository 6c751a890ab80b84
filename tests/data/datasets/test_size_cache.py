"""Sizes come back from the cache as they were put in, whatever the lengths of their items."""

from hypothesis import given
from hypothesis import strategies as st

from data.datasets.size_cache import SizeCache
from data.samples.sample import SampleSizes

FIELDS = ("patches", "frames")
lengths = st.lists(st.integers(1, 9), max_size=3).map(tuple)
drawn = st.tuples(st.integers(0, 4), st.integers(0, 9), lengths, lengths)


@given(st.lists(drawn, max_size=12))
def test_sizes_are_returned_as_they_were_cached(entries):
    cache, expected = SizeCache(5, FIELDS), {}
    for number, tokens, patches, frames in entries:
        sizes = SampleSizes(tokens=tokens, items={"frames": frames, "patches": patches}, images=number, targets=tokens)
        cache[number] = expected[number] = sizes
    assert [cache[number] for number in range(5)] == [expected.get(number) for number in range(5)]
