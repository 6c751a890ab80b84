"""Layouts of more devices than a plan's, and the rows that they divide: as all numbers tried say."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.planners.fuller_layouts import DeviceBlock, FullerLayout, device_blocks, fuller_layouts, nearest_rows
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan

FIRST = st.builds(DeviceBlock, st.integers(1, 6), st.integers(1, 4), st.sampled_from([(1,), (2,), (1, 2), (2, 4)]))
OTHER = st.builds(DeviceBlock, st.integers(1, 4), st.integers(1, 5), st.sampled_from([(), (1,), (2,), (1, 3)]))

NONE = FullerLayout(1000, 0, 0)


def tried(blocks, rows_per_replica, devices):
    """For every number of steps of the first block, the layout of the fewest devices, of all numbers of the others."""
    best: dict[int, FullerLayout] = {}
    for counts in itertools.product(*(range(1, devices // block.step + 1) for block in blocks)):
        used = sum(block.step * count for block, count in zip(blocks, counts, strict=True))
        dp = blocks[0].replicas[0] * counts[0]
        keeps_pace = all(
            count * blocks[0].count >= block.count * counts[0] for block, count in zip(blocks, counts, strict=True)
        )
        replicas = [each * count for block, count in zip(blocks, counts, strict=True) for each in block.replicas]
        divides = not any(rows_per_replica * dp % each for each in replicas)
        if used <= devices and counts[0] > blocks[0].count and keeps_pace and divides:
            multiple = next(rows for rows in itertools.count(1) if not any(rows % each for each in replicas))
            best[dp] = min(FullerLayout(used, dp, multiple), best.get(dp, NONE), key=lambda layout: layout.devices)
    return [best[dp] for dp in sorted(best, reverse=True)]


@given(FIRST, st.lists(OTHER, max_size=2), st.integers(1, 3), st.integers(1, 40))
def test_fuller_layouts_are_those_that_trying_all_numbers_finds(first, others, rows_per_replica, devices):
    blocks = [first, *others]
    assert list(fuller_layouts(blocks, rows_per_replica, devices)) == tried(blocks, rows_per_replica, devices)


@given(st.integers(1, 300), st.integers(1, 120), st.sampled_from([0.0, 0.15, 0.5]))
def test_nearest_rows_are_multiples_within_the_share_and_none_is_nearer(rows, multiple, share):
    close = [count for count in range(1, 2 * rows + 1) if count % multiple == 0 and abs(count - rows) <= share * rows]
    below, above = [count for count in close if count <= rows][-1:], [count for count in close if count >= rows][:1]
    assert nearest_rows(rows, multiple, share) == tuple(sorted({*below, *above}))


def test_480_devices_grow_to_512_with_rows_that_64_replicas_divide():
    plan = Plan((UnitPlan("backbone", ("backbone",), tuple(range(480)), parallelism=Parallelism(dp=60, tp=8)),), 16)
    (block,) = device_blocks(plan, "backbone")
    assert block == DeviceBlock(8, 60, (1,))
    fullest = next(fuller_layouts([block], 2, 512))
    assert fullest == FullerLayout(512, 64, 64)
    assert nearest_rows(1980, fullest.rows_multiple, 0.15) == (1920, 1984)
    assert nearest_rows(1920, fullest.rows_multiple, 0.15) == (1920,)


@pytest.mark.parametrize(("phase_rows", "replicas"), [(0, (2,)), (6, ())])
def test_units_on_the_same_devices_are_a_block_and_dealt_items_bind_no_rows(phase_rows, replicas):
    units = (
        UnitPlan("vision", ("vision",), (8, 9), parallelism=Parallelism(dp=2), phase_rows=phase_rows),
        UnitPlan("backbone", ("backbone",), tuple(range(8)), parallelism=Parallelism(dp=4, tp=2, ep=2)),
        UnitPlan("generator", ("generator",), tuple(range(8)), parallelism=Parallelism(dp=8)),
    )
    backbone, vision = device_blocks(Plan(units, 2), "backbone")
    assert backbone == DeviceBlock(4, 2, (2, 4))  # expert ranks are two replicas of the backbone
    assert vision == DeviceBlock(1, 2, tuple(number // 2 for number in replicas))
