"""Device numbers as text, in tables and plan files: ranges in the order of the devices, such as `0-3,8-11`."""

import itertools
import re
from collections.abc import Sequence

from sharding.plans.text.bounds import MAX_DEVICES

_RANGE = re.compile(r" *(?P<first>[0-9]+)(?:-(?P<last>[0-9]+))? *")


def device_ranges(devices: Sequence[int]) -> str:
    """Device numbers as text: `0-3,7` for (0, 1, 2, 3, 7), in the order given."""
    if isinstance(devices, range) and devices.step == 1 and len(devices) > 1:
        return f"{devices[0]}-{devices[-1]}"
    runs: list[list[int]] = []
    for device in devices:
        if runs and device == runs[-1][-1] + 1:
            runs[-1][-1] = device
        else:
            runs.append([device, device])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def parse_device_ranges(text: str) -> tuple[int, ...]:
    """The device numbers that `device_ranges` wrote; raises ValueError, with what must be changed, for other text."""
    return tuple(itertools.chain.from_iterable(parse_ranges(text)))


def parse_ranges(text: str) -> list[range]:
    """The ranges of a text, in its order; they are checked before any is expanded.

    Raises:
        ValueError: A range is none, descends, repeats a device of another, or has too large a number.
    """
    if text.count(",") >= MAX_DEVICES:
        raise ValueError(f"it may name at most {MAX_DEVICES} devices")
    ranges = [_parse_range(part) for part in text.split(",")]
    for one, other in itertools.pairwise(sorted(ranges, key=lambda device_range: device_range.start)):
        if other.start < one.stop:
            raise ValueError(f"name device {other.start} once")
    return ranges


def _parse_range(part: str) -> range:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise ValueError("it must be device numbers and ranges in order, such as 0-3,8-11")
    first, last = (_parse_number(number) for number in (match["first"], match["last"] or match["first"]))
    if last < first:
        raise ValueError(f"the range {first}-{last} descends: write {last}-{first}, or each number in the order wanted")
    return range(first, last + 1)


def _parse_number(digits: str) -> int:
    if len(digits) > len(str(MAX_DEVICES)) or int(digits) >= MAX_DEVICES:
        raise ValueError(f"device numbers go up to {MAX_DEVICES - 1}")
    return int(digits)
