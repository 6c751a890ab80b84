import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.common.errors import UserError
from sharding.balancing.buckets import Buckets, choose_buckets


def test_sizes_shares_and_padding_of_a_few_lengths():
    buckets = choose_buckets(np.array([9, 1, 10, 1]), 5)
    assert buckets == (
        Buckets((10,), (1.0,), 1 - 21 / 40),
        Buckets((1, 10), (0.5, 0.5), 1 - 21 / 22),
        Buckets((1, 9, 10), (0.5, 0.25, 0.25), 0.0),
    )
    assert choose_buckets(np.array([9, 1, 10, 1]), 2, multiple=4)[-1] == Buckets((4, 12), (0.5, 0.5), 1 - 21 / 32)


def padded(lengths, sizes):
    return sum(min(size for size in sizes if size >= length) for length in lengths)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 4), st.integers(1, 5))
def test_no_other_sizes_have_less_padding(lengths, most, multiple):
    rounded = sorted({-(-length // multiple) * multiple for length in lengths})
    for count, buckets in enumerate(choose_buckets(np.array(lengths), most, multiple), start=1):
        assert len(buckets.sizes) == count and sum(buckets.shares) == pytest.approx(1)
        rivals = [padded(lengths, (*sizes, rounded[-1])) for sizes in itertools.combinations(rounded[:-1], count - 1)]
        assert padded(lengths, buckets.sizes) == min(rivals)
        assert buckets.padding == pytest.approx(1 - sum(lengths) / min(rivals))


def test_many_different_lengths_are_rounded_to_a_few_hundred_sizes():
    (one,) = choose_buckets(np.arange(1, 100_001), 1)
    assert 100_000 <= one.sizes[0] < 100_200


@pytest.mark.parametrize(("lengths", "most"), [([], 1), ([0, 3], 1), ([3], 0)])
def test_invalid_lengths_and_counts_are_refused(lengths, most):
    with pytest.raises(UserError, match="must be at least 1"):
        choose_buckets(np.array(lengths, int), most)
