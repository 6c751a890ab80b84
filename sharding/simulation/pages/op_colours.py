"""Colours of ops: by kind, and of units on the devices of another by unit too."""

from collections.abc import Mapping

from sharding.html.colours import BLUE, GREEN, GREY, ORANGE, PINK, VIOLET, YELLOW
from sharding.schedules.ops import TRANSFERS, OpKind
from sharding.simulation.timeline import Timeline

KIND_COLOURS: dict[OpKind, str] = {
    "forward": BLUE,
    "backward": ORANGE,
    "wgrad": YELLOW,
    "gather": PINK,
    "reduce": GREEN,
    "update": GREY,
    **dict.fromkeys(TRANSFERS, VIOLET),
}
"""Colours of ops. The norm is not drawn: it takes no time of its own."""

_OTHER_UNITS: tuple[tuple[str, str], ...] = (("#b5c92f", "#7d8f0c"), ("#35c4c0", "#14807d"), ("#e57373", "#a83d3d"))
"""Colours of forwards and backwards of units on the devices of another, which has the colours of `KIND_COLOURS`."""


def unit_colours(timeline: Timeline) -> dict[str, Mapping[OpKind, str]]:
    """By unit, the colours of its ops."""
    others = list(dict.fromkeys(unit for unit_idle in timeline.filled_idle for unit in unit_idle.others))
    colours: dict[str, Mapping[OpKind, str]] = {}
    for unit in timeline.lanes_of_units:
        colours[unit] = KIND_COLOURS
        if unit in others:
            forward, backward = _OTHER_UNITS[others.index(unit) % len(_OTHER_UNITS)]
            compute_colours: dict[OpKind, str] = {"forward": forward, "backward": backward}
            colours[unit] = KIND_COLOURS | compute_colours
    return colours
