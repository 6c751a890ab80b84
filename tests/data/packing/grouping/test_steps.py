import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packing.grouping.algorithms import FirstFit
from data.packing.grouping.comparison import dist_ratio
from data.packing.grouping.groups import Groups
from data.packing.grouping.steps import balanced_steps
from tests.data.packing.grouping.draws import sized


@given(sized(), st.integers(1, 6), st.integers(0, 9))
@settings(deadline=None, max_examples=40)
def test_every_group_is_in_one_step_or_leftover(drawn, rows, seed):
    sizes, capacity = drawn
    groups = FirstFit()(sizes, capacity, np.random.default_rng(seed))
    steps, left = balanced_steps(groups, sizes, rows, np.random.default_rng(seed))
    assert steps.shape == (len(groups) // rows, rows)
    assert len(left) == len(groups) % rows
    assert sorted([*steps.ravel().tolist(), *left.tolist()]) == list(range(len(groups)))
    again, left_again = balanced_steps(groups, sizes, rows, np.random.default_rng(seed))
    np.testing.assert_array_equal(again, steps)
    np.testing.assert_array_equal(left_again, left)


def groups_of_one(sizes):
    """Each sample a group."""
    return Groups.from_lengths(np.arange(len(sizes)), np.ones(len(sizes), int))


def test_one_modality_is_sorted_into_steps():
    sizes = np.random.default_rng(0).random((41, 1))
    steps, left = balanced_steps(groups_of_one(sizes), sizes, 4, np.random.default_rng(1))
    kept = np.setdiff1d(np.arange(41), left)
    expected = np.sort(sizes[kept, 0]).reshape(-1, 4)
    actual = np.sort(sizes[steps, 0], axis=1)
    np.testing.assert_array_equal(actual[np.argsort(actual[:, 0])], expected)


@pytest.mark.parametrize("modalities", [2, 3])
def test_groups_of_a_step_are_similar_in_every_modality(modalities):
    random = np.random.default_rng(0)
    sizes = random.lognormal(3, 0.5, (8_000, modalities))
    steps, _ = balanced_steps(groups_of_one(sizes), sizes, 8, random)
    by_chance = dist_ratio(sizes, random.permutation(8_000).reshape(-1, 8)).mean(axis=0)
    assert (dist_ratio(sizes, steps).mean(axis=0) < 0.3 * by_chance).all()


def test_a_modality_of_few_values_is_the_same_in_most_steps():
    random = np.random.default_rng(0)
    sizes = np.stack([random.integers(0, 4, 4_000), random.integers(1, 4_000, 4_000)], axis=1).astype(float)
    steps, _ = balanced_steps(groups_of_one(sizes), sizes, 8, random)
    assert np.mean(np.ptp(sizes[steps, 0], axis=1) == 0) > 0.9


def test_order_and_leftover_groups_are_random():
    sizes = np.arange(1.0, 34.0)[:, None]
    runs = [balanced_steps(groups_of_one(sizes), sizes, 4, np.random.default_rng(seed)) for seed in range(8)]
    assert len({int(steps[0].min()) for steps, _ in runs}) > 3
    assert len({int(left[0]) for _, left in runs}) > 3


def test_steps_of_no_groups_are_refused():
    with pytest.raises(ValueError, match="steps of 0 groups"):
        balanced_steps(groups_of_one(np.ones((2, 1))), np.ones((2, 1)), 0, np.random.default_rng(0))
