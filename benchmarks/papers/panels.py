"""Drawings of the rows: a panel for every figure or table, with what was published beside ours and its range."""

import itertools
from collections.abc import Iterator, Sequence

from benchmarks.papers.paper_rows import Band, Figure, PaperRow
from benchmarks.papers.tables import PAPER_TITLES, band_in_words
from sharding.html.colours import BLUE, EMPTY, ORANGE
from sharding.html.elements import Html, element
from sharding.html.svg import FONT_SIZE, Scale, bottom_axis, drawing, line, rectangle, text, text_width

WIDTH, LABELS, RIGHT = 560, 236, 18
LINE, TITLE, GROUP, AXIS, GAP = 18, 40, 18, 40, 14
"""Heights in pixels: of a system, a title, the name of a row, an axis, and between two panels."""

UNIT_NAMES = {"share": "%", "times": "times", "bytes": "GB"}
FACTORS = {"share": 100.0, "bytes": 1e-9}
"""What a value is multiplied by on an axis."""

LEGEND = (("published", None), ("ours at the paper's layout", BLUE), ("our best plan", ORANGE))
_RADIUS, _APART = 3.5, 3.5
_COLUMNS = 2


def panels_of(rows: Sequence[PaperRow]) -> list[list[PaperRow]]:
    """The rows of every figure or table, by quantity."""
    panels: dict[tuple[str, str, str], list[PaperRow]] = {}
    for row in rows:
        panels.setdefault((row.paper, row.place, row.quantity), []).append(row)
    return list(panels.values())


def has_published(panel: Sequence[PaperRow]) -> bool:
    """Whether something of a panel was published."""
    return any(row.published for row in panel)


def panel_height(panel: Sequence[PaperRow]) -> int:
    """Pixels of a panel."""
    return TITLE + AXIS + LINE * len(panel) + GROUP * len(_groups(panel))


def draw_panel(panel: Sequence[PaperRow]) -> Html:
    """A panel by itself."""
    first = panel[0]
    label = f"{PAPER_TITLES[first.paper]}, {first.place}: {first.quantity}"
    return drawing(WIDTH, panel_height(panel), label, _shapes(panel), narrowest=WIDTH)


def draw_picture(panels: Sequence[Sequence[PaperRow]]) -> str:
    """All panels in columns as an SVG file on white, with a legend."""
    heights, placed = [LINE + GAP] * _COLUMNS, []
    for panel in panels:
        column = heights.index(min(heights))
        shift = f"translate({column * (WIDTH + 2 * GAP) + GAP} {heights[column]})"
        placed.append(element("g", list(_shapes(panel)), transform=shift))
        heights[column] += panel_height(panel) + GAP
    width, height = _COLUMNS * (WIDTH + 2 * GAP), max(heights)
    ground = element("rect", width=width, height=height, fill="#ffffff")
    picture = element(
        "svg",
        ground,
        draw_legend(GAP, FONT_SIZE + 2),
        placed,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label="Published figures of four papers beside ours",
        font_family="system-ui, sans-serif",
        font_size=FONT_SIZE,
        fill="#1b1f24",
        color="#1b1f24",
    )
    return f"{picture}\n"


def draw_legend(x: float, y: float) -> Html:
    """The marks and what they stand for; lines are ranges."""
    shapes = []
    for name, colour in LEGEND:
        shapes.append(_diamond(x + 6, y - 4) if colour is None else _dot(x + 6, y - 4, colour, name))
        shapes.append(text(x + 16, y, name))
        x += 36 + text_width(name)
    shapes.append(text(x, y, "lines: where a simulated figure is expected, or repeated measurements lie", faint=True))
    return element("g", shapes)


def _groups(panel: Sequence[PaperRow]) -> list[tuple[str, list[PaperRow]]]:
    return [(name, list(rows)) for name, rows in itertools.groupby(panel, key=lambda row: row.row)]


def _shapes(panel: Sequence[PaperRow]) -> Iterator[Html]:
    first = panel[0]
    factor = FACTORS.get(first.unit, 1.0)
    least, most = (1.04 * factor * end for end in _ends(panel))
    scale = Scale(least, most, LABELS, WIDTH - RIGHT)
    yield text(0, 14, f"{PAPER_TITLES[first.paper]}, {first.place}", font_weight="600")
    yield text(0, 30, first.quantity, faint=True)
    y = TITLE
    for name, rows in _groups(panel):
        yield text(0, y + 13, _short(name, LABELS + 200))
        y += GROUP
        for row in rows:
            yield rectangle(LABELS, y + 1, WIDTH - RIGHT - LABELS, LINE - 2, EMPTY)
            yield text(10, y + 13, _short(row.system, LABELS - 18), faint=True)
            yield from _marks(row, scale, factor, y + LINE / 2)
            y += LINE
    yield bottom_axis(scale, y + 2, UNIT_NAMES.get(first.unit, first.unit), most=6)


def _marks(row: PaperRow, scale: Scale, factor: float, y: float) -> Iterator[Html]:
    both = row.at_layout is not None and row.best is not None
    for figure, colour, shift in ((row.at_layout, BLUE, -_APART), (row.best, ORANGE, _APART)):
        if figure is not None:
            yield from _figure_marks(row, figure, scale, factor, colour, y + shift * both)
    if row.published is not None:
        left, right = (scale(factor * end) for end in row.published)
        hint = f"published: {band_in_words(row.published, row.unit)}"
        if right - left > 1:
            yield line(left, y, right, y, strong=True, stroke_width=2)
        yield element("g", element("title", hint), _diamond((left + right) / 2, y))


def _figure_marks(row: PaperRow, figure: Figure, scale: Scale, factor: float, colour: str, y: float) -> Iterator[Html]:
    if figure.range is not None:
        yield _stretch(figure.range, scale, factor, y, colour, 1.2)
    yield _stretch(figure.value, scale, factor, y, colour, 4.0)
    hint = f"{figure.kind}: {band_in_words(figure.value, row.unit)}"
    if figure.range is not None:
        hint += f", range {band_in_words(figure.range, row.unit)}"
    yield _dot(scale(factor * figure.value.most), y, colour, hint)


def _stretch(band: Band, scale: Scale, factor: float, y: float, colour: str, width: float) -> Html:
    ends = {"x1": scale(factor * band.least), "x2": scale(factor * band.most), "y1": float(y), "y2": float(y)}
    return element("line", stroke=colour, stroke_width=width, **ends)


def _dot(x: float, y: float, colour: str, hint: str) -> Html:
    return element("circle", element("title", hint), cx=float(x), cy=float(y), r=_RADIUS, fill=colour)


def _diamond(x: float, y: float) -> Html:
    shape = f"M{x:.1f} {y - 5:.1f}l4.5 5l-4.5 5l-4.5 -5z"
    return element("path", d=shape, fill="#fff", stroke="#1b1f24", stroke_width=1.4)


def _ends(panel: Sequence[PaperRow]) -> tuple[float, float]:
    """The least and the most that a panel shows; 0 is always among it."""
    found = [row.published for row in panel]
    for figure in (figure for row in panel for figure in (row.at_layout, row.best) if figure):
        found += [figure.value, figure.range]
    bands = [band for band in found if band is not None]
    least = min(0.0, *(band.least for band in bands))
    most = max(0.0, *(band.most for band in bands))
    return (least, most) if least < most else (0.0, 1.0)


def _short(words: str, room: float) -> str:
    """The words, cut where they are longer than the room."""
    if text_width(words) <= room:
        return words
    return words[: max(1, int(room / text_width("m")) - 1)] + "…"
