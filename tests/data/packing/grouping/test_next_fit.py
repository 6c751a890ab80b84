import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packing.grouping.groups import Groups
from data.packing.grouping.next_fit import as_columns, next_fit
from tests.data.packing.grouping.draws import in_turn, sized


def check(sizes, capacity, order):
    filled = next_fit(as_columns(sizes, capacity), capacity, order)
    expected = in_turn(sizes, capacity, order)
    assert filled.lengths.tolist() == [len(group) for group in expected]
    np.testing.assert_allclose(filled.sums.T, Groups.from_lists(expected).sums(sizes), rtol=1e-12)


@given(sized(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_groups_are_those_of_a_plain_loop(drawn, random):
    sizes, capacity = drawn
    order = random.sample(range(len(sizes)), random.randint(0, len(sizes)))
    check(sizes, capacity, np.array(order, int))


@pytest.mark.parametrize(
    "draw",
    [
        lambda random: random.integers(1, 6, (50_000, 2)),  # several blocks
        lambda random: np.ones((40_000, 1), int),
        lambda random: random.integers(0, 2, (40_000, 1)) * (np.arange(40_000) > 35_000)[:, None],  # no end for long
        lambda random: random.integers(0, 2, (40_000, 1)) * (np.arange(40_000) < 5_000)[:, None],  # none at all
        lambda random: (random.random((40_000, 3)) < 0.002).astype(int),  # groups of thousands
        lambda random: np.zeros((3_000, 2), int),
    ],
)
def test_many_samples_are_grouped_as_few_are(draw):
    sizes = draw(np.random.default_rng(0)).astype(float)
    check(sizes, np.full(sizes.shape[1], 20.0), np.random.default_rng(1).permutation(len(sizes)))
    check(sizes, np.full(sizes.shape[1], 20.0), np.arange(len(sizes)))


def test_sizes_that_add_up_exactly_take_half_the_memory():
    sizes = np.array([[1.0, 2.0**23], [3.0, 0.0]])
    assert as_columns(sizes, np.array([9.0, 2.0**23])).dtype == np.float32
    for other, capacity in (
        (sizes + 0.5, [9.0, 9.0]),
        (sizes, [9.5, 9.0]),
        (sizes, [9.0, np.inf]),
        (2 * sizes, [9.0, 9.0]),
    ):
        assert as_columns(other, np.array(capacity)).dtype == np.float64
