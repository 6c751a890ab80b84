"""Rearrangements are permutations: they invert, compose, and an exchange can carry them out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.balancing.postbalancing.rearrangement import Rearrangement


@st.composite
def rearrangements(draw, before=None):
    if before is None:
        before = np.array(draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)))
    items = int(before.sum())
    target = np.array(draw(st.lists(st.integers(0, len(before) - 1), min_size=items, max_size=items)), int)
    order = np.array(draw(st.permutations(range(items))), int)
    return Rearrangement.from_targets(target, before, order)


@st.composite
def chains(draw, length):
    chain = [draw(rearrangements())]
    while len(chain) < length:
        chain.append(draw(rearrangements(before=chain[-1].after)))
    return chain


def named(counts):
    return [[(replica_of, place) for place in range(count)] for replica_of, count in enumerate(counts.tolist())]


def same(one, other):
    fields = ("before", "after", "target", "target_position")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in fields)


@given(rearrangements())
def test_every_item_gets_the_position_of_its_target(rearrangement):
    after = rearrangement.apply(named(rearrangement.before))
    assert [len(items) for items in after] == rearrangement.after.tolist()
    for source, place, target, at in zip(
        rearrangement.source,
        rearrangement.source_position,
        rearrangement.target,
        rearrangement.target_position,
        strict=True,
    ):
        assert after[target][at] == (source, place)


@given(rearrangements())
def test_the_inverse_brings_every_item_back(rearrangement):
    held = named(rearrangement.before)
    assert rearrangement.inverse().apply(rearrangement.apply(held)) == held
    assert same(rearrangement.compose(rearrangement.inverse()), Rearrangement.identity(rearrangement.before))
    assert same(rearrangement.inverse().inverse(), rearrangement)


@given(chains(3))
def test_composition_applies_both_and_is_associative(chain):
    first, second, third = chain
    held = named(first.before)
    assert first.compose(second).apply(held) == second.apply(first.apply(held))
    assert same(first.compose(second).compose(third), first.compose(second.compose(third)))
    assert same(first.compose(Rearrangement.identity(first.after)), first)


def test_items_keep_their_order_by_default():
    before = np.array([2, 2])
    assert Rearrangement.from_targets(np.array([1, 0, 1, 0]), before).apply([["a", "b"], ["c", "d"]]) == [
        ["b", "d"],
        ["a", "c"],
    ]
    turned = Rearrangement.from_targets(np.array([1, 0, 1, 0]), before, np.array([3, 2, 1, 0]))
    assert turned.apply([["a", "b"], ["c", "d"]]) == [["d", "b"], ["c", "a"]]


@pytest.mark.parametrize(
    ("before", "after", "target", "place", "message"),
    [
        ([2, -1], [1, 0], [0], [0], "not of the same replicas"),
        ([1, 1], [2, 0], [0], [0], "1 targets must be equal"),
        ([1, 1], [2, 0], [0, 2], [0, 1], "targets from 0 to 2"),
        ([1, 1], [2, 0], [0, 1], [0, 0], "item 1: position 0 of 1 is out of range"),
        ([1, 1], [2, 0], [0, 0], [-1, 0], "item 0: position -1 of 0 is out of range"),
        ([1, 1], [2, 0], [0, 0], [1, 1], "item 0: position 1 of 0 is given twice"),
    ],
)
def test_arrays_that_are_no_permutation_are_refused(before, after, target, place, message):
    with pytest.raises(ValueError, match=message):
        Rearrangement(*(np.array(numbers) for numbers in (before, after, target, place)))


def test_counts_that_do_not_match_are_refused():
    one = Rearrangement.identity(np.array([1, 2]))
    with pytest.raises(ValueError, match="the other begins with"):
        one.compose(Rearrangement.identity(np.array([2, 1])))
    with pytest.raises(ValueError, match="are rearranged"):
        one.apply([["a"], ["b"]])
