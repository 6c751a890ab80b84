import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packing.grouping.groups import Groups, concatenate_groups

lists = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5), max_size=6)


@settings(deadline=None, max_examples=30)
@given(lists)
def test_lists_come_back(lists):
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
    for number, found in enumerate((groups.sums(sizes), groups.largest(sizes))):
        assert found.shape == (len(lists), modalities)
        np.testing.assert_array_equal(found, np.array([each[number] for each in expected]).reshape(found.shape))


@settings(deadline=None, max_examples=30)
@given(lists, st.data())
def test_take_picks_groups_in_the_order_asked_for(lists, data):
    chosen = data.draw(st.permutations(range(len(lists))))[: data.draw(st.integers(0, len(lists)))]
    taken = Groups.from_lists(lists, refused=[7]).take(np.array(chosen, int))
    assert [members.tolist() for members in taken] == [lists[number] for number in chosen]
    assert taken.refused.tolist() == [7]


@settings(deadline=None, max_examples=30)
@given(lists, lists)
def test_joined_groups_follow_each_other(first, second):
    groups = concatenate_groups([Groups.from_lists(first, refused=[1]), Groups.from_lists(second, refused=[2])])
    assert [members.tolist() for members in groups] == first + second
    assert groups.refused.tolist() == [1, 2]


@pytest.mark.parametrize("starts", [[], [0], [0, 2], [1, 3], [0, 2, 2, 3], [0, 2, 1, 3]])
def test_starts_that_do_not_divide_the_members_are_refused(starts):
    with pytest.raises(ValueError, match="must ascend from 0 to the 3 members"):
        Groups(np.arange(3), np.array(starts, int))


@pytest.mark.parametrize("group", [2, -3])
def test_a_group_that_is_not_there_is_an_index_error(group):
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
def test_whole_means_each_sample_once(lists, refused, whole):
    assert Groups.from_lists(lists, refused).are_whole(3) is whole
