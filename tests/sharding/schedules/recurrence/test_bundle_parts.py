"""Replicas of a bundle's ops that share devices, directly or through others, are one part."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sharding.schedules.recurrence.bundle_parts import joined_parts


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_parts_are_the_fewest_whole_replicas_that_share_devices(sizes, random):
    """Twelve devices in parts of some sizes, each divided into replicas by either op."""
    ends = np.cumsum(sizes)
    parts = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    tables: list[list[list[int]]] = [[], []]
    for part in parts:
        held = random.sample(list(part), len(part))
        tables[0].append(held)
        tables[1] += [[device] for device in held]
    for table in tables:
        random.shuffle(table)
    widest = max(sizes)
    first, second = (
        np.array([held + held[:1] * (widest - len(held)) for held in table]) for table in tables
    )  # a repeated group fills a row
    joined = joined_parts(first, second)
    part_of = {device: number for number, part in enumerate(parts) for device in part}
    for table, numbers in ((first, joined[0]), (second, joined[1])):
        by_part = {}
        for row, number in zip(table.tolist(), numbers.tolist(), strict=True):
            by_part.setdefault(part_of[row[0]], set()).add(number)
        assert all(len(numbers) == 1 for numbers in by_part.values())
    assert len(set(joined[0].tolist())) == len(sizes) == len(set(joined[1].tolist()))
