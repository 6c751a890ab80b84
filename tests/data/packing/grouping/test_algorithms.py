import itertools
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.data_config import GroupingPolicyName
from data.errors import DataError
from data.packing.grouping.algorithms import (
    DeviceBalancedGroups,
    FirstFit,
    IterativeSamplingAndFiltering,
    RandomGroups,
    SortedGroups,
)
from data.packing.grouping.comparison import dist_ratio, pad_ratio
from data.packing.grouping.grouping_policies import GROUPING_POLICIES
from data.packing.grouping.groups import Groups
from data.packing.grouping.post_balanced import PostBalancedGroups
from tests.data.packing.grouping.draws import contain_each_sample_once, sized


def policies(modalities, oversized="alone"):
    return [
        IterativeSamplingAndFiltering(threshold=(4.0,) * modalities, rounds=3, oversized=oversized),
        FirstFit(oversized=oversized),
        RandomGroups(samples=3, oversized=oversized),
        SortedGroups(samples=3, modality=modalities - 1, oversized=oversized),
        DeviceBalancedGroups(samples=3, modality=0, devices=2, oversized=oversized),
        PostBalancedGroups(rows=3, oversized=oversized),
    ]


@given(sized(), st.integers(0, 5), st.integers(0, 9), st.sampled_from(["alone", "refuse"]))
@settings(deadline=None, max_examples=50)
def test_every_sample_is_grouped_once_and_within_the_capacity(drawn, which, seed, oversized):
    sizes, capacity = drawn
    too_large = np.flatnonzero((sizes > capacity).any(axis=1))
    policy = policies(len(capacity), oversized)[which]
    groups = policy(sizes, capacity, np.random.default_rng(seed))
    assert contain_each_sample_once(groups, len(sizes))
    if oversized == "alone":
        assert not len(groups.refused)
        assert [members.tolist() for members in groups][len(groups) - len(too_large) :] == [
            [number] for number in too_large
        ]
    else:
        np.testing.assert_array_equal(groups.refused, too_large)
    others = [members for members in groups if not np.isin(members, too_large).any()]
    sums = np.array([sizes[members].sum(axis=0) for members in others]).reshape(-1, len(capacity))
    assert (sums <= capacity * (1 + 1e-9)).all()
    again = policy(sizes, capacity, np.random.default_rng(seed))  # the same draws, the same groups
    np.testing.assert_array_equal(again.members, groups.members)
    np.testing.assert_array_equal(again.starts, groups.starts)


def fewest_groups(sizes, capacity):
    """By trying every way to number the groups of samples."""
    for count in range(1, len(sizes) + 1):
        for numbers in itertools.product(range(count), repeat=len(sizes)):
            sums = np.zeros((count, sizes.shape[1]))
            np.add.at(sums, list(numbers), sizes)
            if (sums <= capacity).all():
                return count
    return 0


@given(sized(most=6), st.integers(0, 9))
@settings(deadline=None, max_examples=30)
def test_number_of_groups_is_near_the_minimum(drawn, seed):
    sizes, capacity = np.rint(drawn[0]), np.rint(drawn[1]) + 1
    sizes = sizes[(sizes <= capacity).all(axis=1)]
    fewest = fewest_groups(sizes, capacity)
    full = tuple(capacity.tolist())
    for policy in (IterativeSamplingAndFiltering(threshold=full), FirstFit()):
        # Any two neighbours of next-fit, or groups of first-fit, exceed the capacity together in some modality.
        assert len(policy(sizes, capacity, np.random.default_rng(seed))) <= 2 * len(capacity) * fewest


@pytest.mark.parametrize("infinite", [False, True])
def test_baselines_differ_as_published(infinite):
    random = np.random.default_rng(0)
    sizes = random.lognormal(5, 0.8, (800, 1))
    capacity = np.array([np.inf if infinite else 1e6])
    pads, dists = {}, {}
    for policy in (
        RandomGroups(samples=4),
        SortedGroups(samples=4, modality=0),
        DeviceBalancedGroups(samples=4, modality=0, devices=8),
    ):
        groups = policy(sizes, capacity, random)
        assert groups.lengths.tolist() == [4] * 200
        steps = np.arange(200).reshape(-1, 8)
        pads[type(policy)] = float(pad_ratio(groups, sizes).mean())
        dists[type(policy)] = float(dist_ratio(groups.sums(sizes), steps).mean())
    assert pads[SortedGroups] < 0.1 * pads[RandomGroups]
    assert dists[SortedGroups] > dists[RandomGroups]
    assert dists[DeviceBalancedGroups] < 0.1 * dists[RandomGroups]
    assert pads[DeviceBalancedGroups] > 0.5 * pads[RandomGroups]


def test_samples_too_few_for_all_devices_come_last():
    sizes = np.arange(1.0, 12.0)[:, None]
    groups = DeviceBalancedGroups(samples=2, modality=0, devices=4)(sizes, np.array([100.0]), np.random.default_rng(0))
    assert groups.lengths.tolist() == [2, 2, 2, 2, 2, 1]
    assert sorted(np.concatenate([groups[4], groups[5]]).tolist()) == [8, 9, 10]


def test_more_rounds_accept_more():
    random = np.random.default_rng(0)
    sizes = np.stack([random.integers(0, 3, 2_000), random.integers(20, 900, 2_000)], axis=1).astype(float)
    counts = [
        len(
            IterativeSamplingAndFiltering(threshold=(9.0, 3968.0), rounds=rounds)(
                sizes, np.array([9.0, 4096.0]), random
            )
        )
        for rounds in (0, 1, 10)
    ]
    assert counts[2] < counts[1] < counts[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomGroups(samples=0), "groups of 0 samples"),
        (lambda: DeviceBalancedGroups(samples=1, modality=0, devices=0), "0 devices"),
        (lambda: SortedGroups(samples=1, modality=2), "modality 2 of 2"),
        (lambda: IterativeSamplingAndFiltering(threshold=(1.0,)), "for 2 modalities"),
    ],
)
def test_invalid_settings_are_refused(make, message):
    with pytest.raises(DataError, match=message):
        make()(np.ones((3, 2)), np.array([4.0, 4.0]), np.random.default_rng(0))


def test_no_samples_make_no_groups():
    for policy in policies(2):
        groups = policy(np.zeros((0, 2)), np.array([4.0, 4.0]), np.random.default_rng(0))
        assert isinstance(groups, Groups)
        assert len(groups) == 0
        assert contain_each_sample_once(groups, 0)


def test_every_policy_that_a_configuration_can_name_exists():
    assert list(GROUPING_POLICIES) == list(get_args(GroupingPolicyName))
