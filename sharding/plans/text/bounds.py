"""The largest numbers and longest names of a plan: a file with others is damaged or hostile, and is refused by name.

Without bounds a number of a few digits would take hours to schedule, or more memory than there is.
"""

import reprlib

MAX_DEVICES = 1 << 20
"""Devices of the largest cluster that a plan may be for; their numbers are below it."""

MAX_ROWS = 1 << 22
"""Rows of a global batch, or of a microbatch in a unit with rows of its own: a simulation draws the load of each."""

MAX_UNITS = 1 << 10
MAX_STAGES = 1 << 12
"""Virtual stages of a unit."""

MAX_MICROBATCHES = 1 << 14
MAX_NAME = 100
"""Characters of the name of a unit, a module or a schedule."""

LARGEST: dict[str, float] = {
    "layers": 1 << 16,
    "phase_rows": MAX_ROWS,
    "capacities": 1 << 24,
    "extra_microbatches": MAX_MICROBATCHES * MAX_STAGES,
    "forward_seconds": 1e9,
    "backward_seconds": 1e9,
}
"""Largest numbers by key of a unit. Numbers that multiply devices, such as `dp`, are bounded by how many it lists."""


def excess(key: str, value: int | tuple[int, ...] | tuple[float, ...]) -> str:
    """Says what is wrong with a number of a unit, or with the largest of several; empty if nothing is."""
    largest = max(value, default=0) if isinstance(value, tuple) else value
    if largest > LARGEST[key]:
        return f"{key} has {largest:g}; it may be at most {LARGEST[key]:g}"
    return ""


def name_fault(name: str) -> str:
    """Says what is wrong with a name; empty if nothing is."""
    if name.isprintable() and len(name) <= MAX_NAME:
        return ""
    return f"{reprlib.repr(name)} is not a name; use at most {MAX_NAME} printable characters"
