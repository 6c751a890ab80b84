"""Charts of a description: histograms of lengths, shares of padding by policy, padding by number of buckets.

`html_page.py` shows them.
"""

from collections.abc import Callable, Mapping, Sequence

from data.packing.grouping.comparison import GroupingResult
from data.report.length_distribution import LengthDistribution
from sharding.balancing.buckets import Buckets
from sharding.html.colours import BLUE, GREEN, GREY, ORANGE, PINK
from sharding.html.elements import Html, element
from sharding.html.numbers import count, percent
from sharding.html.svg import (
    Scale,
    bottom_axis,
    drawing,
    left_axis,
    line,
    polyline,
    rectangle,
    text,
)

COLOURS = {
    "tokens": BLUE,
    "text": "#86bbe3",
    "patches": ORANGE,
    "vision": ORANGE,
    "encoder_images": ORANGE,
    "video_clips": ORANGE,
    "video_frames": ORANGE,
    "frames": GREEN,
    "audio": GREEN,
    "encoder_clips": GREEN,
    "images": PINK,
    "generation": PINK,
}
"""Colours of modalities, the same wherever one occurs."""

_WIDTH = 330
_MIN_SHARE = 0.05  # of the longest bar's scale, so that small shares look small


def colour_of(name: str) -> str:
    """The colour of a modality."""
    return COLOURS.get(name, GREY)


def histogram(distribution: LengthDistribution) -> Html:
    """Bars of equal widths; samples beyond the last one are a grey bar at the right. The median is dashed."""
    height, floor, top, left, right = 168, 118, 12, 40, _WIDTH - 8
    edges, counts = distribution.edges, distribution.counts
    beyond = distribution.beyond
    end = right - (52 if beyond else 0)
    scale = Scale(edges[0], edges[-1], left, end)
    tall = Scale(0, max(*counts, beyond, 1), floor, top)
    shapes = [left_axis(tall, left, right, most=3)]
    for start, stop, samples in zip(edges[:-1], edges[1:], counts, strict=True):
        name = count(start) if stop == start + 1 else f"{count(start)} to {count(stop - 1)}"
        x, wide = scale(start), max(scale(stop) - scale(start) - 1, 0.5)
        hint = f"{name}: {count(samples)} samples"
        shapes.append(rectangle(x, tall(samples), wide, floor - tall(samples), colour_of(distribution.name), hint))
    if beyond:
        hint = f"{count(edges[-1])} to {count(distribution.maximum)}: {count(beyond)} samples"
        shapes.append(rectangle(end + 30, tall(beyond), 16, floor - tall(beyond), GREY, hint))
        shapes.append(text(end + 38, floor + 15, "more", "middle", faint=True))
    median = scale(distribution.percentiles[50])
    shapes += [line(median, top, median, floor, strong=True, stroke_dasharray="2 3")]
    unit = "units of a sample; the bars count samples"
    return drawing(_WIDTH, height, f"Histogram of {distribution.name}", shapes, bottom_axis(scale, floor, unit, most=6))


def shares_stack(shares: Mapping[str, float]) -> Html:
    """A bar that is divided by shares."""
    shapes, x = [], 0.0
    for name, share in shares.items():
        shapes.append(rectangle(x, 0, 640 * share, 22, colour_of(name), f"{name}: {percent(share)}"))
        x += 640 * share
    return drawing(640, 22, "Backbone tokens by modality", shapes)


def policy_bars(
    label: str,
    results: Sequence[GroupingResult],
    shares_of: Callable[[GroupingResult], Mapping[str, float | None]],
    chosen: GroupingResult,
) -> Html:
    """A group of bars for every policy, a bar for every modality; the chosen policy in bold."""
    names = list(dict.fromkeys(name for result in results for name in shares_of(result)))
    thick, left, right = (13 if len(names) > 1 else 17), 96, _WIDTH - 46
    most = max([_MIN_SHARE, *(share for result in results for share in shares_of(result).values() if share)])
    scale, shapes, y = Scale(0.0, most, left, right), [], 4
    for number, result in enumerate(results):
        if not number or result.padded != results[number - 1].padded:
            title = "batches padded to their longest sample" if result.padded else "packed rows"
            shapes.append(text(0, y + 12, title, faint=True))
            y += 20
        weight = "bold" if result is chosen else None
        shapes.append(text(0, y + thick * len(names) / 2 + 4, result.policy, font_weight=weight))
        for name in names:
            share = shares_of(result).get(name)
            if share is not None:
                wide = max(scale(share) - left, 1)
                hint = f"{result.policy}, {name}: {percent(share)}"
                shapes.append(rectangle(left, y, wide, thick - 2, colour_of(name), hint))
                shapes.append(text(left + wide + 4, y + thick - 3, percent(share), faint=True, font_size=11))
            y += thick
        y += 9
    return drawing(_WIDTH, y, label, shapes)


def buckets_chart(buckets: Mapping[str, Sequence[Buckets]]) -> Html:
    """Padding of single samples by the number of sizes to which they are padded, a line for every modality."""
    height, floor, left, right = 178, 128, 48, _WIDTH - 12
    most = max(_MIN_SHARE, *(choice.padding for choices in buckets.values() for choice in choices))
    numbers = max(2, *(len(choices) for choices in buckets.values()))
    x, y = Scale(1, numbers, left + 8, right), Scale(0.0, 100 * most, floor, 20)
    shapes = [left_axis(y, left, right, "padding in %"), bottom_axis(x, floor, "buckets", most=numbers - 1)]
    for name, choices in buckets.items():
        points = [(x(number), y(100 * choice.padding)) for number, choice in enumerate(choices, 1)]
        shapes.append(polyline(points, colour_of(name)))
        shapes += [
            element(
                "circle",
                element("title", f"{name}: {percent(choice.padding)}"),
                cx=px,
                cy=py,
                r=3.5,
                fill=colour_of(name),
            )
            for (px, py), choice in zip(points, choices, strict=True)
        ]
    return drawing(_WIDTH, height, "Padding by number of buckets", shapes)
