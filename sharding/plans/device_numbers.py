"""Device numbers of units, as a `range` where they are consecutive: comparing and hashing one takes constant time."""

import functools
import operator
import reprlib
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int

from sharding.plans.plan_error import PlanError

Devices = tuple[int, ...] | range
"""Device numbers in order; consecutive ones are a `range`, so that equal numbers compare equal."""


def as_devices(numbers: Sequence[int]) -> Devices:
    """Device numbers as `Devices`; raises PlanError if they are no whole numbers."""
    if isinstance(numbers, range) and numbers.step == 1:
        return numbers or ()
    try:
        given = tuple(map(operator.index, numbers))
    except TypeError as error:
        raise PlanError(f"devices are {reprlib.repr(numbers)}; give whole numbers, such as range(8)") from error
    consecutive = range(given[0], given[0] + len(given)) if given else ()
    return consecutive if given == tuple(consecutive) else given


def shifted(devices: Devices, first: int) -> Devices:
    """The devices, each with a number higher by `first`."""
    if isinstance(devices, range):
        return range(devices.start + first, devices.stop + first)
    return tuple(first + device for device in devices)


def lowest(devices: Devices) -> int:
    """The lowest number, of a range in constant time."""
    return devices[0] if isinstance(devices, range) else min(devices)


def highest(devices: Devices) -> int:
    """The highest number, of a range in constant time."""
    return devices[-1] if isinstance(devices, range) else max(devices)


def device_array(devices: Devices) -> Int[np.ndarray, " n"]:
    """The devices as an array."""
    return np.arange(devices.start, devices.stop) if isinstance(devices, range) else np.array(devices, int)


# A set of 100,000 devices takes 7 MB.
@functools.lru_cache(maxsize=32)
def device_set(devices: Devices) -> frozenset[int]:
    """The devices as a set."""
    return frozenset(devices)


def count_distinct(parts: Iterable[Devices]) -> int:
    """Number of different devices."""
    parts = list(parts)
    ranges = [part for part in parts if isinstance(part, range)]
    if len(ranges) < len(parts):
        return len(set().union(*parts))
    count = end = 0
    for part in sorted(ranges, key=lambda part: part.start):
        count += max(0, part.stop - max(part.start, end))
        end = max(end, part.stop)
    return count
