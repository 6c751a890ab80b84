"""Shapes and axes of SVG drawings.

Text and lines have the colour of the surrounding text, so that a drawing suits light and dark pages and notebooks, and
nothing depends on a style sheet, a script or an id.
"""

import dataclasses
from collections.abc import Iterable

from sharding.html.elements import Html, element
from sharding.html.numbers import Number, tick_labels, ticks

FONT_SIZE = 12
_CHARACTER = 0.6  # width of a character relative to the font size, rounded up


@dataclasses.dataclass(frozen=True)
class Scale:
    """Maps values from low to high to pixels from start to end."""

    low: Number
    high: Number
    start: Number
    end: Number

    def __call__(self, value: Number) -> float:
        """Returns the pixel of a value."""
        if self.high == self.low:
            return self.start
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def drawing(width: Number, height: Number, label: str, *shapes: str | Iterable[str], narrowest: Number = 0) -> Html:
    """A drawing that shrinks with the page, but does not grow.

    Args:
        width: Width in pixels.
        height: Height in pixels.
        label: What it shows, for screen readers.
        shapes: Its shapes.
        narrowest: Pixels to which it shrinks; where there are fewer, it scrolls in a box of its own.
    """
    at_least = f"min-width:{narrowest:g}px;" if narrowest else ""
    drawn = element(
        "svg",
        *shapes,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=label,
        style=f"display:block;width:100%;{at_least}max-width:{width:g}px;height:auto;overflow:visible",
        font_family="system-ui, sans-serif",
        font_size=FONT_SIZE,
        fill="currentColor",
    )
    return element("div", drawn, class_="scroll", style="overflow-x:auto") if narrowest else drawn


def text(x: Number, y: Number, words: str, anchor: str = "start", faint: bool = False, **attributes: object) -> Html:
    """A line of text; y is its baseline, the anchor `start`, `middle` or `end`."""
    opacity = 0.7 if faint else None
    return element("text", words, x=float(x), y=float(y), text_anchor=anchor, opacity=opacity, **attributes)


def text_width(words: str, size: Number = FONT_SIZE) -> float:
    """An upper estimate of a text's width in pixels."""
    return len(words) * size * _CHARACTER


def rectangle(x: Number, y: Number, width: Number, height: Number, colour: str, hint: str = "") -> Html:
    """A filled rectangle; the hint is shown where the pointer rests on it."""
    hints = element("title", hint) if hint else ""
    sizes = {"x": float(x), "y": float(y), "width": float(max(width, 0)), "height": float(height)}
    return element("rect", hints, fill=colour, **sizes)


def line(x1: Number, y1: Number, x2: Number, y2: Number, strong: bool = False, **attributes: object) -> Html:
    """A line; a strong one as dark as text."""
    ends = {"x1": float(x1), "y1": float(y1), "x2": float(x2), "y2": float(y2)}
    return element("line", stroke="currentColor", stroke_opacity=0.9 if strong else 0.25, **ends, **attributes)


def polyline(points: Iterable[tuple[Number, Number]], colour: str, **attributes: object) -> Html:
    """A line through points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return element("polyline", points=path, fill="none", stroke=colour, stroke_width=1.5, **attributes)


def bottom_axis(scale: Scale, y: Number, unit: str = "", most: int = 8) -> Html:
    """Even ticks along a horizontal line, as many as their labels leave room for; the unit stands below, once.

    The outermost labels may extend beyond the line by half their width.

    Args:
        scale: Values to pixels; its start and end are the ends of the line.
        y: Where the line is; labels take the 16 pixels below, the unit 16 more.
        unit: What the labels count.
        most: Most steps between ticks.
    """
    for steps in range(most, 0, -1):
        values = ticks(scale.low, scale.high, steps)
        labels = tick_labels(values)
        apart = scale(values[1]) - scale(values[0]) if len(values) > 1 else scale.end - scale.start
        if max(map(text_width, labels)) + 8 <= apart:
            break
    shapes = [line(scale.start, y, scale.end, y)]
    for value, label in zip(values, labels, strict=True):
        x = scale(value)
        shapes += [line(x, y, x, y + 4), text(x, y + 15, label, "middle", faint=True, class_="tick")]
    if unit:
        shapes.append(text((scale.start + scale.end) / 2, y + 30, unit, "middle", faint=True))
    return element("g", shapes)


def left_axis(scale: Scale, x: Number, right: Number, unit: str = "", most: int = 4) -> Html:
    """Even ticks as faint horizontal lines from x to `right`; the unit stands above, once.

    The labels end 6 pixels before x.
    """
    values = ticks(scale.low, scale.high, most)
    shapes = []
    for value, label in zip(values, tick_labels(values), strict=True):
        y = scale(value)
        shapes += [line(x, y, right, y), text(x - 6, y + 4, label, "end", faint=True, class_="tick")]
    if unit:
        shapes.append(text(x, min(scale.start, scale.end) - 6, unit, faint=True))
    return element("g", shapes)
