"""Sizes and capacities for the tests of grouping."""

import numpy as np
from hypothesis import strategies as st


@st.composite
def sized(draw, most=60):
    """Sizes [n, k] of n = 0 to `most` samples and a capacity, whole numbers or halves, some samples above it."""
    modalities = draw(st.integers(1, 4))
    unit = draw(st.sampled_from([0.1, 0.5, 1.0]))
    count = draw(st.integers(0, most))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = random.integers(0, 12, (count, modalities)) * unit
    capacity = random.integers(6, 48, modalities) * unit
    return sizes, capacity


def in_turn(sizes, capacity, order):
    """Next-fit as a plain loop."""
    groups, total = [], None
    for sample in order:
        more = sizes[sample] if total is None else total + sizes[sample]
        if total is None or (more > capacity).any():
            groups.append([])
            more = sizes[sample]
        groups[-1].append(int(sample))
        total = more
    return groups


def contain_each_sample_once(groups, count):
    """Whether each of `count` samples is in one group once, or refused once."""
    return np.array_equal(np.sort(np.concatenate([groups.members, groups.refused])), np.arange(count))
