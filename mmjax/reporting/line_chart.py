"""Line charts over steps, as SVG that needs no script and no style sheet; `metrics_charts.py` draws by it."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from sharding.html.elements import Html, element, figures, legend
from sharding.html.numbers import significant
from sharding.html.svg import Scale, bottom_axis, drawing, left_axis, line, polyline

WIDTH, HEIGHT = 460, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 24, 40
_MOST_POINTS = 400
"""Largest number of points of a series; neighbours are averaged where there are more."""

_OUTLIER = 3.0
"""Values beyond this multiple of the 90th percentile of distances from the median are drawn at the edge."""

_FEWEST_FOR_OUTLIERS = 5
_SMALLEST_SPAN = 1e-9
"""Values whose difference is below this share of the largest value are drawn as one."""


@dataclasses.dataclass(frozen=True)
class Series:
    """A named line: (step, value) in the order of steps, and its colour."""

    name: str
    points: Sequence[tuple[int, float]]
    colour: str


def line_chart(
    title: str,
    series: Sequence[Series],
    steps: tuple[int, int],
    *,
    unit: str = "",
    marks: Sequence[tuple[int, str]] = (),
    write: Callable[[float], str] = significant,
    from_zero: bool = False,
) -> Html:
    """Draws a chart with even ticks, whose points show their step and value under the pointer.

    Values far outside the others stand at the edge, so that they do not flatten the rest. Where no line has two points,
    their values are printed instead.

    Args:
        title: Title of the chart.
        series: The lines; a legend names them if there are several.
        steps: First and last step of the axis.
        unit: Unit of the values.
        marks: Steps to mark by a vertical line, with their labels.
        write: Writes a value where the pointer rests.
        from_zero: Whether the vertical axis begins at 0.
    """
    if all(len(one.points) < 2 for one in series):
        return _values(title, series, unit, write)
    low, high = _range([value for one in series for _, value in one.points], from_zero)
    across = Scale(steps[0], max(steps[1], steps[0] + 1), _LEFT, WIDTH - _RIGHT)
    up = Scale(low, high, HEIGHT - _BOTTOM, _TOP)
    shapes = [left_axis(up, _LEFT, WIDTH - _RIGHT, unit, most=6), bottom_axis(across, HEIGHT - _BOTTOM, "step")]
    for step, words in marks:
        x = across(step)
        hint = element("title", words)
        shapes.append(
            element("g", hint, line(x, _TOP, x, HEIGHT - _BOTTOM, strong=True, stroke_dasharray="3 4"), class_="mark")
        )
    for one in series:
        shapes += _drawn(_thinned(one), across, up, write)
    outside = sorted({step for one in series for step, value in one.points if not low <= value <= high})
    return element(
        "figure",
        element("figcaption", title, style="font-weight:600"),
        drawing(WIDTH, HEIGHT, f"{title} by step", shapes),
        legend((one.colour, one.name) for one in series) if len(series) > 1 else "",
        _outside_note(outside),
        style="margin:0",
        class_="chart",
    )


def _values(title: str, series: Sequence[Series], unit: str, write: Callable[[float], str]) -> Html:
    """Prints the only value of each line as a large figure."""
    shown = [(one, *one.points[0]) for one in series if one.points]
    several = len(series) > 1
    numbers = [
        (f"{one.name} at step {step}" if several else f"at step {step}", write(value)) for one, step, value in shown
    ]
    return element(
        "figure",
        element("figcaption", title, style="font-weight:600"),
        figures(numbers),
        element("div", unit, class_="note", style="font-size:12px;opacity:.75") if unit else "",
        style="margin:0",
        class_="chart",
    )


def _outside_note(steps: Sequence[int]) -> Html | str:
    if not steps:
        return ""
    named = ", ".join(map(str, steps[:5])) + (f" and {len(steps) - 5} more" if len(steps) > 5 else "")
    words = f"▲ outside the chart, at step {named}; the pointer shows the value"
    return element("div", words, class_="note", style="font-size:12px;opacity:.75")


def _range(values: Sequence[float], from_zero: bool) -> tuple[float, float]:
    """Returns the lowest and the highest value of the axis."""
    ordered = sorted(values)
    low, high = (ordered[0], ordered[-1]) if ordered else (0.0, 1.0)
    if len(ordered) >= _FEWEST_FOR_OUTLIERS:
        middle = ordered[len(ordered) // 2]
        usual = sorted(abs(value - middle) for value in ordered)[math.ceil(0.9 * len(ordered)) - 1]
        if usual:
            low, high = max(low, middle - _OUTLIER * usual), min(high, middle + _OUTLIER * usual)
    low = min(low, 0.0) if from_zero else low
    largest = max(abs(low), abs(high))
    if high - low <= _SMALLEST_SPAN * max(largest, _SMALLEST_SPAN):
        margin = 0.1 * (largest if largest > _SMALLEST_SPAN**2 else 1.0)
        return low - margin, high + margin
    margin = 0.04 * (high - low)
    return (low if from_zero else low - margin), high + margin


def _thinned(series: Series) -> Series:
    """Reduces a series to at most _MOST_POINTS points: means of neighbours, at the last step of each."""
    size = math.ceil(len(series.points) / _MOST_POINTS)
    if size <= 1:
        return series
    groups = [series.points[first : first + size] for first in range(0, len(series.points), size)]
    means = [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]
    return dataclasses.replace(series, points=means)


def _drawn(series: Series, across: Scale, up: Scale, write: Callable[[float], str]) -> list[Html]:
    """Draws the line, and a point for each value with its hint."""
    inside = [(step, min(max(value, up.low), up.high)) for step, value in series.points]
    shapes = [polyline(((across(step), up(value)) for step, value in inside), series.colour)]
    radius = 2.2 if len(inside) > 1 else 4.0  # a single one has no line that shows where it is
    for (step, value), (_, shown) in zip(series.points, inside, strict=True):
        hint = element("title", f"{series.name}, step {step}: {write(value)}")
        x, y = across(step), up(shown)
        if value == shown:
            shapes.append(element("circle", hint, cx=x, cy=y, r=radius, fill=series.colour, class_="point"))
        else:
            tip = 7 if value > shown else -7
            path = f"M{x:.1f} {y:.1f}l5 {tip}h-10z"
            shapes.append(element("path", hint, d=path, fill=series.colour, class_="point"))
    return shapes
