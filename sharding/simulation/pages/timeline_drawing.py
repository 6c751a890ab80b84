"""The drawing of a step: of pages, runs and notebooks; it needs no script and no style sheet."""

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sharding.html.colours import EMPTY
from sharding.html.elements import Html, element
from sharding.html.numbers import percent, seconds_unit
from sharding.html.svg import Scale, bottom_axis, drawing, line, rectangle, text
from sharding.schedules.ops import OpKind
from sharding.simulation.idle.idle_time import IdleCause
from sharding.simulation.pages.drawn_ops import DrawnLane, DrawnOp, drawn_lanes
from sharding.simulation.pages.op_colours import KIND_COLOURS, unit_colours
from sharding.simulation.timeline import Timeline

CAUSE_COLOURS: dict[IdleCause, str] = {
    "warm-up": "#79b8dc",
    "dependency": "#cc6677",
    "straggler microbatch": "#a3a340",
    "straggler replica": "#3f9b5f",
    "hop": "#7a70cf",
    "tensor parallel": "#b05aa4",
    "gather": "#cdb65f",
    "reduce": "#44aa99",
    "cool-down": "#94a6ba",
}
"""Colours of idle causes; after Tol's muted palette, made for colour blindness."""

_WIDTH, _NARROWEST, _LABELS, _TOP = 820, 600, 176, 6
_ROW_HEIGHTS = (28, 8)  # with labels, and of timelines with more lanes than _MANY_LANES
_MANY_LANES = 48
_IDLE_HEIGHT = 0.4  # of a row: idle time is drawn lower than ops

_LIGHTER = 0.13  # of every one of four microbatches, so that neighbours differ

_MANY_SHAPES = 500  # in a lane; more are drawn column by column, so that a drawing stays small
_COLUMN = 2  # pixels


class _Shape(NamedTuple):
    """A rectangle of a lane: its time in seconds, and its height and what is below it as shares of the lane's."""

    colour: str
    start: float
    end: float
    height: float
    opacity: float = 1.0
    below: float = 0.0


_UnitColours = Mapping[str, Mapping[OpKind, str]]

_Rectangles = dict[tuple[str, float], list[str]]  # commands of a path by colour and opacity


def draw_timeline(timeline: Timeline, until: float | None = None) -> Html:
    """Every lane of a timeline with its busy share; idle time is a low strip in the colour of its cause.

    Args:
        timeline: The timeline.
        until: Seconds at the end of the axis, at least the step's, which are the default.
    """
    lanes, colours, end = drawn_lanes(timeline), unit_colours(timeline), until or timeline.step
    high = _ROW_HEIGHTS[len(lanes) > _MANY_LANES]
    unit_seconds, unit = seconds_unit(end)
    to_pixels = Scale(0.0, end / unit_seconds, _LABELS, _WIDTH - 12)
    scale = Scale(0.0, end, to_pixels.start, to_pixels.end)
    bottom = _TOP + high * len(lanes)
    rows = [_row(timeline.step, lanes, colours, number, scale, high) for number in range(len(lanes))]
    axis = bottom_axis(to_pixels, bottom + 2, f"time in {unit}")
    label = f"Timeline of a {timeline.kind} step on {len(timeline.lanes)} pipeline ranks"
    return drawing(_WIDTH, bottom + 40, label, rows, axis, narrowest=_NARROWEST)


def _row(
    step: float, lanes: tuple[DrawnLane, ...], colours: _UnitColours, number: int, scale: Scale, high: int
) -> Html:
    drawn, top = lanes[number], _TOP + high * number
    shapes = [rectangle(scale.start, top + 1, scale(step) - scale.start, high - 2, EMPTY)]
    if number and lanes[number - 1].unit != drawn.unit:
        shapes.append(line(0, top, _WIDTH, top))
    if high == _ROW_HEIGHTS[0]:
        shapes += [
            text(0, top + 18, drawn.name),
            text(_LABELS - 8, top + 18, percent(drawn.busy / step), "end", faint=True),
        ]
    elif not number or lanes[number - 1].unit != drawn.unit:
        shapes.append(text(0, top + 12, drawn.unit))
    paths = _paths(drawn, step, colours, scale, top + 1, high - 2)
    shapes += [
        element("path", d="".join(path), fill=colour, fill_opacity=opacity) for (colour, opacity), path in paths.items()
    ]
    return element("g", shapes)


def _paths(drawn: DrawnLane, step: float, colours: _UnitColours, scale: Scale, top: int, high: int) -> _Rectangles:
    """The rectangles of a lane; in a long lane one for each run of columns of pixels."""
    shapes = list(_shapes(drawn, step, colours, scale))
    if len(shapes) > _MANY_SHAPES:
        shapes = _in_columns(shapes, np.linspace(0.0, step, 1 + int(scale(step) - scale.start) // _COLUMN))
    paths: _Rectangles = collections.defaultdict(list)
    for shape in shapes:
        left, wide = scale(shape.start), max(scale(shape.end) - scale(shape.start), 0.2)
        lower, tall = top + high * (1 - shape.height - shape.below), high * shape.height
        paths[shape.colour, shape.opacity].append(f"M{left:.2f} {lower:.1f}h{wide:.2f}v{tall:.1f}h-{wide:.2f}z")
    return paths


def _shapes(drawn: DrawnLane, step: float, colours: _UnitColours, scale: Scale) -> Iterator[_Shape]:
    for cause, start, end in _idle(drawn, step):
        yield _Shape(CAUSE_COLOURS[cause], start, end, _IDLE_HEIGHT)
    for op in drawn.ops:
        if op.op.kind in KIND_COLOURS:
            opacity = 1 - _LIGHTER * (max(op.op.microbatch, 0) % 4)
            colour = colours[op.op.unit][op.op.kind]
            height, below = 1.0 if op.half == "whole" else 0.5, 0.5 if op.half == "upper" else 0.0
            yield _Shape(colour, op.start, _seam(op, scale), height, opacity, below)


def _in_columns(shapes: Sequence[_Shape], edges: np.ndarray) -> list[_Shape]:
    """One shape for every column between two edges, each as often as it covers time, equal neighbours joined."""
    by_look: dict[tuple[str, float, float], list[_Shape]] = {}
    for shape in sorted(shapes, key=lambda shape: shape.start):
        by_look.setdefault((shape.colour, shape.height, shape.below), []).append(shape)
    # Two ops of a bundle cover the same time: each counts for half of it, and is drawn for half of it, whole.
    shares = [0.5 if height == 0.5 else 1.0 for _, height, _ in by_look]
    covered = np.stack(
        [share * _seconds_covered(alike, edges) for share, alike in zip(shares, by_look.values(), strict=True)]
    )
    empty = np.diff(edges) - covered.sum(axis=0)
    looks = [None, *by_look]
    chosen = _spread_evenly(np.concatenate([empty[None], covered]))
    starts = np.flatnonzero(np.diff(chosen, prepend=-1))
    ends = [*starts[1:], len(chosen)]
    runs = ((looks[chosen[start]], edges[start], edges[end]) for start, end in zip(starts, ends, strict=True))
    return [
        _Shape(look[0], float(start), float(end), 1.0 if look[1] == 0.5 else look[1])
        for look, start, end in runs
        if look
    ]


def _spread_evenly(covered: np.ndarray) -> np.ndarray:
    """For every column the row [looks, columns] that has covered most of the time it was not yet chosen for."""
    chosen, unpaid = [], np.zeros(len(covered))
    for column in covered.T:
        unpaid += column
        chosen.append(int(np.argmax(unpaid)))
        unpaid[chosen[-1]] -= column.sum()
    return np.array(chosen)


def _seconds_covered(shapes: Sequence[_Shape], edges: np.ndarray) -> np.ndarray:
    """Seconds of every column that shapes cover, which do not overlap and are in order."""
    ends = np.array([(shape.start, shape.end) for shape in shapes])
    until_end = np.cumsum(ends[:, 1] - ends[:, 0])
    until = np.stack([np.concatenate([[0.0], until_end[:-1]]), until_end], axis=1)
    return np.diff(np.interp(edges, ends.ravel(), until.ravel()))


def _seam(op: DrawnOp, scale: Scale) -> float:
    """The end of an op, a little earlier where there is room to tell it from the next."""
    pixel = (scale.high - scale.low) / (scale.end - scale.start)
    return op.end - 0.5 * pixel if op.end - op.start > 3 * pixel else op.end


def _idle(drawn: DrawnLane, step: float) -> Iterator[tuple[IdleCause, float, float]]:
    for op in drawn.ops:
        yield from _ending_at(op.start, op.idle_before)
    yield from _ending_at(step, drawn.idle_after)


def _ending_at(end: float, idle: Mapping[IdleCause, float]) -> Iterator[tuple[IdleCause, float, float]]:
    start = end - sum(idle.values())
    for cause, seconds in idle.items():
        yield cause, start, start + seconds
        start += seconds
