import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.packing.grouping.groups import Groups, concatenate_groups, exceeds_capacity
from tests.data.packing.grouping.draws import contain_each_sample_once, sized

lists = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5), max_size=6)


@settings(deadline=None, max_examples=30)
@given(lists)
def test_groups_from_lists_are_those_lists(lists):
    groups = Groups.from_lists(lists)
    assert len(groups) == len(lists)
    assert [members.tolist() for members in groups] == lists
    assert [groups[number].tolist() for number in range(len(groups))] == lists
    assert groups.lengths.tolist() == [len(group) for group in lists]
    assert [groups[-1 - number].tolist() for number in range(len(groups))] == lists[::-1]


@settings(deadline=None, max_examples=30)
@given(lists, st.integers(1, 3))
def test_sums_and_largest_are_those_of_the_members(lists, modalities):
    sizes = np.random.default_rng(0).integers(0, 9, (31, modalities)).astype(float)
    groups = Groups.from_lists(lists)
    expected = [[sizes[group].sum(axis=0), sizes[group].max(axis=0)] for group in lists]
    for number, table in enumerate((groups.sums(sizes), groups.largest(sizes))):
        assert table.shape == (len(lists), modalities)
        np.testing.assert_array_equal(table, np.array([group[number] for group in expected]).reshape(table.shape))


@settings(deadline=None, max_examples=30)
@given(lists, st.data())
def test_take_returns_groups_in_the_requested_order(lists, data):
    chosen = data.draw(st.permutations(range(len(lists))))[: data.draw(st.integers(0, len(lists)))]
    taken = Groups.from_lists(lists, refused=[7]).take(np.array(chosen, int))
    assert [members.tolist() for members in taken] == [lists[number] for number in chosen]
    assert taken.refused.tolist() == [7]


@settings(deadline=None, max_examples=30)
@given(lists, lists)
def test_concatenated_groups_keep_their_order(first, second):
    groups = concatenate_groups([Groups.from_lists(first, refused=[1]), Groups.from_lists(second, refused=[2])])
    assert [members.tolist() for members in groups] == first + second
    assert groups.refused.tolist() == [1, 2]


@pytest.mark.parametrize("starts", [[], [0], [0, 2], [1, 3], [0, 2, 2, 3], [0, 2, 1, 3]])
def test_invalid_starts_are_refused(starts):
    with pytest.raises(ValueError, match="must ascend strictly from 0 to the number of members 3"):
        Groups(np.arange(3), np.array(starts, int))


@pytest.mark.parametrize("group", [2, -3])
def test_missing_groups_are_an_index_error(group):
    with pytest.raises(IndexError, match=f"group {group} of 2"):
        Groups.from_lists([[0], [1]])[group]


@pytest.mark.parametrize(
    ("lists", "refused", "whole"),
    [
        ([[2, 0], [1]], [], True),
        ([[2, 0]], [1], True),
        ([], [], False),
        ([[2, 0]], [], False),
        ([[2, 0], [1, 2]], [], False),
        ([[2, 0], [1]], [1], False),
        ([[2, 0], [3]], [], False),
        ([[2, 0], [-1]], [], False),
    ],
)
def test_helper_detects_lost_and_repeated_samples(lists, refused, whole):
    assert contain_each_sample_once(Groups.from_lists(lists, refused), 3) is whole


@settings(deadline=None, max_examples=30)
@given(sized())
def test_exceeds_capacity_in_any_modality(drawn):
    sizes, capacity = drawn
    expected = [any(size > most for size, most in zip(row, capacity, strict=True)) for row in sizes.tolist()]
    assert exceeds_capacity(sizes, capacity).tolist() == expected


@pytest.mark.parametrize(
    ("sizes", "capacity", "message"),
    [
        ([[1.0, 2.0]], [3.0], "sizes of 2 modalities, 1 capacities"),
        ([[1.0]], [0.0], "it must be positive"),
        ([[1.0]], [np.nan], "it must be positive"),
        ([[1.0], [np.nan]], [2.0], "sample 1 has nan units of modality 0"),
        ([[1.0], [-1.0]], [2.0], "sample 1 has -1.0 units"),
        ([[1.0], [np.inf]], [2.0], "sample 1 has inf units"),
    ],
)
def test_invalid_sizes_and_capacities_are_refused(sizes, capacity, message):
    with pytest.raises(DataError, match=message):
        exceeds_capacity(np.array(sizes), np.array(capacity))
