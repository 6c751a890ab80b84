"""Which data-parallel sizes would use more of the devices than a plan does, and the numbers of rows they divide."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from sharding.plans.device_numbers import count_distinct, device_set
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan


@dataclasses.dataclass(frozen=True)
class DeviceBlock:
    """Devices that some units of a plan share, apart from all others.

    Attributes:
        step: Devices by which their number can grow with the units' other sizes as they are.
        count: Steps that there are; `step * count` devices.
        replicas: Replicas in a step of each module that takes whole rows; of the backbone's block the backbone's first.
            Empty where all items are dealt over any number of replicas.
    """

    step: int
    count: int
    replicas: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class FullerLayout:
    """A layout of more devices than a plan's, with its sizes apart from data parallelism.

    Attributes:
        devices: Devices that it uses.
        dp: Replicas of the backbone.
        rows_multiple: Number of which the rows of a global batch must be a multiple, so that all replicas of modules
            that take whole rows divide those of a microbatch.
    """

    devices: int
    dp: int
    rows_multiple: int


def device_blocks(plan: Plan, backbone: str) -> list[DeviceBlock]:
    """The blocks of a plan, the backbone's first."""
    blocks: list[list[UnitPlan]] = []
    for unit in plan.units:
        sharing = [
            block for block in blocks if any(not device_set(unit.devices).isdisjoint(other.devices) for other in block)
        ]
        blocks = [block for block in blocks if block not in sharing]
        blocks.append([*itertools.chain(*sharing), unit])
    blocks.sort(key=lambda units: all(backbone not in unit.modules for unit in units))
    return [_block(units, backbone) for units in blocks]


def _block(units: Sequence[UnitPlan], backbone: str) -> DeviceBlock:
    devices = count_distinct(unit.devices for unit in units)
    replicas = {module: (unit, unit.replicas_of(module)) for unit in units for module in unit.modules}
    count = math.gcd(devices, *(number // unit.parallelism.ep for unit, number in replicas.values()))
    whole_rows = sorted((module for module in replicas if not replicas[module][0].phase_rows), key=backbone.__ne__)
    return DeviceBlock(devices // count, count, tuple(replicas[module][1] // count for module in whole_rows))


def fuller_layouts(blocks: Sequence[DeviceBlock], rows_per_replica: int, devices: int) -> Iterator[FullerLayout]:
    """Yields the layouts with more replicas of the backbone that some number of rows allows, most devices first.

    The other blocks grow with the backbone's: to the fewest steps with at least as many replicas for each of its, of
    which those that take whole rows must divide the rows of a microbatch. A microbatch may become smaller, not larger.

    Args:
        blocks: The blocks of the plan, the backbone's first (`device_blocks`).
        rows_per_replica: Rows of a microbatch on each replica of the backbone.
        devices: Devices that there are.
    """
    first, *others = blocks
    for count in range(devices // first.step, first.count, -1):
        dp = first.replicas[0] * count
        rows = rows_per_replica * dp
        if any(rows % (replicas * count) for replicas in first.replicas):
            continue
        steps = [count]
        left = devices - first.step * count
        steps += [_steps_at_pace(block, -(-block.count * count // first.count), rows, left) for block in others]
        used = sum(block.step * number for block, number in zip(blocks, steps, strict=True))
        if used <= devices:
            replicas = (each * number for block, number in zip(blocks, steps, strict=True) for each in block.replicas)
            yield FullerLayout(used, dp, math.lcm(*replicas))


def _steps_at_pace(block: DeviceBlock, least: int, rows: int, devices: int) -> int:
    """The fewest steps of a block from `least` on whose replicas divide the rows; too many for the devices if none."""
    if not block.replicas:
        return least
    counts = np.arange(least, devices // block.step + 1)
    divides = np.all([rows % (each * counts) == 0 for each in block.replicas], axis=0)
    return int(counts[divides.argmax()]) if divides.any() else devices + 1


def nearest_rows(rows: int, multiple: int, share: float) -> tuple[int, ...]:
    """The nearest multiples below and above a number of rows, as far as they differ by at most a share of it."""
    below = rows // multiple * multiple
    around = {below, below + multiple} if rows % multiple else {rows}
    return tuple(sorted(count for count in around if count > 0 and abs(count - rows) <= share * rows))
