"""The memory of a simulated step by kind: a bar for each stage against a device's memory, and a table."""

import dataclasses
from collections.abc import Mapping, Sequence

from sharding.html.colours import BLUE, EMPTY, GREEN, GREY, ORANGE, PINK, VIOLET, YELLOW
from sharding.html.elements import Html, element, join, legend, table
from sharding.html.numbers import percent, size, size_unit
from sharding.html.svg import Scale, bottom_axis, drawing, line, rectangle, text
from sharding.simulation.timeline import Lane, Timeline

_WIDTH, _NARROWEST, _LABELS, _ROW, _TOP = 820, 600, 176, 22, 20
_MOST_BARS = 32
"""Where there are more stages, the fullest are drawn."""


@dataclasses.dataclass(frozen=True)
class _Kind:
    """A kind of bytes: its colour, the fields of `Timeline.lane_memory` that it consists of, and their meaning."""

    colour: str
    fields: tuple[str, ...]
    words: str


_KINDS = {
    "weights": _Kind(BLUE, ("weights",), "in compute precision"),
    "gradients": _Kind(ORANGE, ("gradients",), "in float32, and the gradients of a microbatch in compute precision"),
    "optimizer state": _Kind(PINK, ("optimizer",), "master weights and moments in float32"),
    "activations": _Kind(GREEN, ("saved", "reserved"), "what microbatches in flight save for their backwards"),
    "gathered layers": _Kind(
        VIOLET, ("gathered",), "whole weights of two layers at a time, and whole gradients of one"
    ),
    "one layer at work": _Kind(YELLOW, ("workspace",), "what it recomputes, and buffers of its experts' tokens"),
    "exchanged": _Kind(GREY, ("exchanged",), "buffers of what stages exchange where rows lie elsewhere"),
}


_Held = Mapping[tuple[str, ...], Mapping[str, float]]
"""Bytes by kind, by the stages on a set of devices."""


def memory_section(timeline: Timeline) -> Html:
    """Bytes by kind on the fullest device of every stage; nothing of a measured step, which knows none."""
    if timeline.costs is None:
        return join(())
    held = {names: _by_kind(timeline, lane) for names, lane in _places(timeline).items()}
    kinds = [kind for kind in _KINDS if any(bytes_by_kind[kind] for bytes_by_kind in held.values())]
    fullest = sorted(held, key=lambda names: -sum(held[names].values()))[:_MOST_BARS]
    bars = _bars({names: held[names] for names in held if names in fullest}, kinds, timeline.device_memory)
    listed = _table(held, kinds, timeline.device_memory)
    return element(
        "div",
        element("p", _in_words(timeline)),
        legend((_KINDS[kind].colour, f"{kind}: {_KINDS[kind].words}") for kind in kinds),
        bars,
        listed if len(held) <= _MOST_BARS else element("details", element("summary", "Every stage"), listed),
        class_="memory",
    )


def _places(timeline: Timeline) -> dict[tuple[str, ...], Lane]:
    """One of the stages on each set of devices, by the names of all of them: they share what it holds."""
    by_devices: dict[frozenset[int], list[Lane]] = {}
    for lane in timeline.lanes:
        by_devices.setdefault(frozenset(lane.devices), []).append(lane)
    return {tuple(lane.name for lane in lanes): lanes[0] for lanes in by_devices.values()}


def _by_kind(timeline: Timeline, lane: Lane) -> dict[str, float]:
    held = timeline.lane_memory(lane)
    return {name: sum(held[field] for field in kind.fields) for name, kind in _KINDS.items()}


def _in_words(timeline: Timeline) -> str:
    lane = max(timeline.lanes, key=timeline.lane_peak_memory)
    needed, room = timeline.lane_peak_memory(lane), timeline.device_memory
    room_share = f" of the {size(room)} of a device that arrays can take ({percent(needed / room)})" if room else ""
    too_much = ", which does not fit" if room and needed > room else ""
    return f"The fullest stage, {lane.name}, takes {size(needed)}{room_share}, simulated{too_much}."


def _bars(held: _Held, kinds: Sequence[str], room: float | None) -> Html:
    most = max([*(sum(stage_bytes.values()) for stage_bytes in held.values()), room or 0.0])
    unit_bytes, unit = size_unit(most)
    scale = Scale(0.0, 1.04 * most / unit_bytes, _LABELS, _WIDTH - 12)
    bottom = _TOP + _ROW * len(held)
    shapes = []
    for number, (names, bytes_by_kind) in enumerate(held.items()):
        top, before, first = _TOP + _ROW * number, 0.0, names[0]
        shapes.append(text(0, top + 15, f"{first} and {len(names) - 1} more" if len(names) > 1 else first))
        if room:
            shapes.append(rectangle(scale.start, top + 3, scale(room / unit_bytes) - scale.start, _ROW - 6, EMPTY))
        for kind in kinds:
            bytes_ = bytes_by_kind[kind] / unit_bytes
            left, right = scale(before), scale(before + bytes_)
            hint = f"{', '.join(names)}, {kind}: {size(bytes_by_kind[kind])}"
            shapes.append(rectangle(left, top + 3, right - left, _ROW - 6, _KINDS[kind].colour, hint))
            before += bytes_
    if room:
        x = scale(room / unit_bytes)
        shapes += [line(x, _TOP - 4, x, bottom, strong=True), text(x, _TOP - 8, "a device", "end", faint=True)]
    shapes.append(bottom_axis(scale, bottom + 2, f"memory of the fullest device in {unit}"))
    return drawing(_WIDTH, bottom + 40, f"Memory by kind of {len(held)} stages", shapes, narrowest=_NARROWEST)


def _table(held: _Held, kinds: Sequence[str], room: float | None) -> Html:
    rows = [
        (
            ", ".join(names),
            *(size(bytes_by_kind[kind]) for kind in kinds),
            size(sum(bytes_by_kind.values())),
            *([percent(sum(bytes_by_kind.values()) / room)] if room else []),
        )
        for names, bytes_by_kind in held.items()
    ]
    columns = ("stage", *(f"#{kind}" for kind in kinds), "#all", *(["#of a device"] if room else []))
    caption = (
        "Memory in a simulated step on the fullest device of each stage, with what all units hold on it, at the moment "
        "when it holds most"
    )
    return table(columns, rows, caption)
