import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.packing.grouping.algorithms import IterativeSamplingAndFiltering
from data.packing.grouping.bin_packing import as_columns
from data.packing.grouping.groups import exceeds_capacity
from data.packing.grouping.isf import published_isf_capacity, sample_and_filter, search_isf_capacity
from tests.data.packing.grouping.draws import in_turn, sized


def printed(sizes, capacity, threshold, rounds, samples, random):
    """Algorithms 1 and 2 in plain loops, with the last group flushed."""
    accepted, rest = [], samples.tolist()
    for _ in range(rounds):
        candidates, rest = in_turn(sizes, capacity, random.permutation(rest) if rest else []), []
        for group in candidates:
            if (sizes[group].sum(axis=0) >= threshold).any():
                accepted.append(group)
            else:
                rest += group
    return accepted, rest


@given(sized(), st.integers(0, 4), st.floats(0, 1), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_groups_are_those_of_the_published_algorithms(drawn, rounds, share, seed):
    sizes, capacity = np.rint(drawn[0]), np.rint(drawn[1]) + 1
    samples = np.flatnonzero((sizes <= capacity).all(axis=1))
    threshold = np.rint(share * capacity)
    groups, rest = sample_and_filter(
        as_columns(sizes, capacity), capacity, threshold, rounds, samples, np.random.default_rng(seed)
    )
    expected, left = printed(sizes, capacity, threshold, rounds, samples, np.random.default_rng(seed))
    assert [members.tolist() for members in groups] == expected
    assert rest.tolist() == left


def test_the_last_group_of_a_round_is_a_candidate():
    sizes = np.full((3, 1), 4.0)
    groups, rest = sample_and_filter(
        as_columns(sizes, np.array([12.0])),
        np.array([12.0]),
        np.array([12.0]),
        1,
        np.arange(3),
        np.random.default_rng(0),
    )
    assert sorted(groups[0].tolist()) == [0, 1, 2]
    assert not len(rest)


def drawn(count, seed=0):
    random = np.random.default_rng(seed)
    tiles = random.integers(0, 5, count)
    return np.stack([tiles, 256 * tiles + np.minimum(np.floor(random.lognormal(5, 0.7, count)), 2000)], axis=1) * 1.0


def test_published_capacity_of_the_papers_example():
    # Of 455 tokens an image, Q is 9 images where the longest text has 4,096 tokens.
    sizes = np.array([[1.0, 4096.0], [9.0, 454.0]])
    capacity, threshold = published_isf_capacity(sizes, reference=1)
    assert capacity.tolist() == [9.0, 4096.0]
    assert threshold.tolist() == [9.0, 3968.0]
    shorter, _ = published_isf_capacity(sizes, reference=1, longest=2048.0)
    assert shorter.tolist() == [5.0, 2048.0]  # 4.5 to the nearest even


def test_rare_modalities_get_at_least_one_unit():
    capacity, _ = published_isf_capacity(np.array([[0.0, 500.0, 0.0], [1.0, 5e5, 1.0]]), reference=1, longest=1000.0)
    assert capacity.tolist() == [1.0, 1000.0, 1.0]


@pytest.mark.parametrize("samples", [3.0, 6.0])
def test_groups_of_the_found_capacity_have_the_requested_samples(samples):
    sizes = drawn(8_000)
    choice = search_isf_capacity(sizes, samples, (1.0, 16.0), 1, np.random.default_rng(0))
    assert (choice.capacity % [1, 16] == 0).all()
    assert choice.threshold.tolist() == [choice.capacity[0], choice.capacity[1] - 128]
    assert choice.oversized == exceeds_capacity(sizes, choice.capacity).mean()
    policy = IterativeSamplingAndFiltering(threshold=tuple(choice.threshold.tolist()), oversized="refuse")
    groups = policy(sizes, choice.capacity, np.random.default_rng(1))
    grouped = groups.lengths.sum() / len(groups)
    assert samples - 0.1 < grouped < samples + 1.1
    assert grouped == pytest.approx(choice.samples, rel=0.02)
    padding_share = 1 - (groups.sums(sizes) / choice.capacity).mean(axis=0)
    np.testing.assert_allclose(padding_share, choice.padding_share, atol=0.02)
    # No worse than the capacity that the averages alone suggest.
    plain = np.maximum(np.rint(sizes.mean(axis=0) * (samples + 0.5) / [1, 16]), 1) * [1, 16]
    plain_policy = IterativeSamplingAndFiltering(threshold=(float(plain[0]), float(plain[1] - 128)), oversized="refuse")
    plain_groups = plain_policy(sizes, plain, np.random.default_rng(1))
    assert padding_share.sum() <= (1 - (plain_groups.sums(sizes) / plain).mean(axis=0)).sum() + 0.02


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        (np.zeros((0, 2)), {"reference": 1}, "0 samples have no units of modality 1"),
        (np.ones((3, 2)), {"reference": 2}, "modality 2 of 2"),
        (np.ones((3, 2)), {"reference": 1}, "lower slack"),
        (np.full((3, 2), np.nan), {"reference": 1}, "sample 0 has nan units"),
    ],
)
def test_sizes_without_reference_units_are_refused(sizes, options, message):
    with pytest.raises(DataError, match=message):
        published_isf_capacity(sizes, **options)


@pytest.mark.parametrize(
    ("samples", "multiples", "message"),
    [
        (2.0, (1.0,), "give a positive one for each modality"),
        (0.5, (1.0, 1.0), "groups of 0.5 samples"),
        (1.0, (1e5, 1e5), "no capacity gives groups of 1.0 to 2.0 samples, but of"),
        (2.0, (1.0, 1e-9), None),
    ],
)
def test_requests_that_no_capacity_meets_are_refused(samples, multiples, message):
    sizes = drawn(500)
    if message is None:
        assert search_isf_capacity(sizes, samples, multiples, 1, np.random.default_rng(0)).samples >= samples
        return
    with pytest.raises(DataError, match=message):
        search_isf_capacity(sizes, samples, multiples, 1, np.random.default_rng(0))
