"""Numbers for people, the same on every page: counts, shares, durations, sizes, and the ticks of axes."""

import math
from collections.abc import Sequence

Number = int | float

_SECOND_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_SIZE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_STEPS = (1, 2, 5, 10)


def count(value: Number) -> str:
    """A count with thousands separated; a mean below 100 with one decimal."""
    return f"{value:,.1f}" if value != int(value) and abs(value) < 100 else f"{value:,.0f}"


def count_of(value: Number, noun: str) -> str:
    """A count with what is counted, in the singular or the plural: "1 microbatch", "2 processes"."""
    plural = f"{noun}es" if noun.endswith(("s", "ch")) else f"{noun}s"
    return f"{count(value)} {noun if value == 1 else plural}"


def percent(share: Number | None) -> str:
    """A share as a percentage with one decimal; a dot where there is none."""
    return "·" if share is None else f"{share:.1%}"


def seconds_unit(largest: Number) -> tuple[float, str]:
    """The unit for durations of at most `largest` seconds, as its seconds and its name."""
    return next((unit for unit in _SECOND_UNITS if largest >= unit[0]), _SECOND_UNITS[-1])


def seconds(value: Number) -> str:
    """A duration with four significant digits."""
    scale, unit = seconds_unit(abs(value))
    return "0 s" if value == 0 else f"{significant(value / scale)} {unit}"


def seconds_range(least: Number, most: Number) -> str:
    """A range of durations in one unit, with three significant digits: "1.74 to 2.58 s"."""
    scale, unit = seconds_unit(abs(most))
    return f"{significant(least / scale, 3)} to {significant(most / scale, 3)} {unit}"


def size_unit(largest: Number) -> tuple[float, str]:
    """The unit for sizes of at most `largest` bytes, as its bytes and its name."""
    return next((unit for unit in _SIZE_UNITS if largest >= unit[0]), _SIZE_UNITS[-1])


def size(bytes_: Number) -> str:
    """Bytes with three significant digits."""
    scale, unit = size_unit(abs(bytes_))
    return f"{significant(bytes_ / scale, 3)} {unit}"


def significant(value: Number, digits: int = 4) -> str:
    """A number with so many significant digits, never in powers of ten."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def nice_step(span: Number, most: int) -> float:
    """The smallest of 1, 2 and 5 times a power of ten of which at most `most` fit into a positive span."""
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in _STEPS if power * factor >= rough * (1 - 1e-9))


def ticks(low: Number, high: Number, most: int = 6) -> list[float]:
    """At most `most` + 1 even ticks from low to high: the multiples of `nice_step`."""
    if not high > low:
        return [float(low)]
    step = nice_step(high - low, most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def tick_labels(values: Sequence[Number]) -> list[str]:
    """Labels of even ticks, all with the decimals that their step needs."""
    if len(values) < 2:
        return [f"{value:,.4g}" for value in values]
    decimals = max(0, -math.floor(math.log10(values[1] - values[0]) + 1e-9))
    return [f"{value + 0.0:,.{decimals}f}" for value in values]
