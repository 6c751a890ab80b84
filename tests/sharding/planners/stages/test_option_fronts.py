"""Fronts hold exactly what no other selection beats."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sharding.planners.stages.option_fronts import GroupFronts, best_within

SEEDS = st.integers(0, 1_000_000)


@given(SEEDS, st.integers(0, 4), st.integers(1, 4))
def test_a_front_has_every_selection_that_none_beats(seed, layers, options):
    random = np.random.default_rng(seed)
    size, seconds = random.integers(0, 9, (2, options)).astype(float)
    allowed = random.random(options) < 0.8
    allowed[0] = True
    front = GroupFronts(size, seconds, allowed).of_layers(layers)
    every = {
        (float(size[list(chosen)].sum()), float(seconds[list(chosen)].sum()))
        for chosen in itertools.combinations_with_replacement(np.flatnonzero(allowed).tolist(), layers)
    }
    kept = {pair for pair in every if not any(other != pair and beats(other, pair) for other in every)}
    assert set(zip(front.size.tolist(), front.seconds.tolist(), strict=True)) == kept
    assert (front.counts.sum(axis=1) == layers).all() and not front.counts[:, ~allowed].any()


@given(SEEDS, st.integers(1, 3), st.integers(0, 40))
def test_groups_together_take_the_fewest_seconds_that_fit(seed, groups, room):
    random = np.random.default_rng(seed)
    size, seconds = random.integers(0, 9, (2, groups, 3)).astype(float)
    layers = random.integers(1, 3, groups).tolist()
    fronts = [GroupFronts(size[g], seconds[g], np.ones(3, bool)).of_layers(count) for g, count in enumerate(layers)]
    best = best_within(fronts, float(room))
    group_of = [g for g, count in enumerate(layers) for _ in range(count)]
    totals = [
        sum(seconds[g, option] for g, option in zip(group_of, options, strict=True))
        for options in itertools.product(range(3), repeat=len(group_of))
        if sum(size[g, option] for g, option in zip(group_of, options, strict=True)) <= room
    ]
    if not totals:
        assert best is None
        return
    assert best is not None and best[0] == min(totals)
    counts = best[1].reshape(groups, 3)
    assert counts.sum(axis=1).tolist() == layers
    assert (counts * seconds).sum() == best[0] and (counts * size).sum() <= room


def beats(one, other):
    return one[0] <= other[0] and one[1] <= other[1]
