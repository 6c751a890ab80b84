"""The rows as a page of results: a table for every figure, the assumptions by number, and the orders of systems."""

import datetime
from collections.abc import Iterator, Sequence

from benchmarks.papers.orders import ORDERS, check_orders
from benchmarks.papers.panels import panels_of
from benchmarks.papers.paper_rows import Figure, PaperRow
from benchmarks.papers.tables import PAPER_TITLES, band_in_words
from benchmarks.rows import package_versions

_INTRODUCTION = """\
# The tables of four papers beside ours

    python -m benchmarks.papers --json
    python -m benchmarks.papers --page=papers.html

**Setup.** {date}, {versions}.
Figures are **simulated** by the costs of `sharding/costs`, unless they are said to be computed (by an algorithm,
without costs) or measured (by the processor's clock of this machine); nothing ran on a GPU.
What each figure means, where its range comes from, and what came out is on the page
[Papers](../../docs/reference/papers.md). "Published" is empty where the text at hand does not state a figure. MFU has
two ends: the squares of causal attention halved, and whole. Numbers in brackets are assumptions, listed below each
paper.
"""


def results_page(rows: Sequence[PaperRow]) -> str:
    """The page in Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    today = datetime.date.today().isoformat()
    return "\n".join([_INTRODUCTION.format(date=today, versions=versions), *_sections(rows)])


def _sections(rows: Sequence[PaperRow]) -> Iterator[str]:
    checked = check_orders(ORDERS, rows)
    for paper, title in PAPER_TITLES.items():
        of_paper = [row for row in rows if row.paper == paper]
        if not of_paper:
            continue
        yield f"## {title}\n"
        notes = list(dict.fromkeys(note for row in of_paper for note in row.assumptions))
        for panel in panels_of(of_paper):
            yield from _table(panel, notes)
        yield "\n".join(f"{number}. {note}" for number, note in enumerate(notes, start=1)) + "\n"
        orders = [order.words for order in checked if order.order.paper == paper]
        if orders:
            yield "**Orders of systems**, from the smallest figure to the largest:\n"
            yield "\n".join(f"- {words}" for words in orders) + "\n"


def _table(panel: Sequence[PaperRow], notes: Sequence[str]) -> Iterator[str]:
    """A table without the columns in which all cells are empty."""
    yield f"### {panel[0].place}: {panel[0].quantity}\n"
    columns = {
        "row": [row.row for row in panel],
        "system": [row.system for row in panel],
        "published": [band_in_words(row.published, row.unit) for row in panel],
        "at its layout": [_figure(row, row.at_layout) for row in panel],
        "our best": [_figure(row, row.best) for row in panel],
        "our plan": [row.best_plan for row in panel],
        "": ["".join(f"[{notes.index(note) + 1}]" for note in row.assumptions) for row in panel],
    }
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    yield f"| {' | '.join(shown)} |"
    yield f"|{'---|' * len(shown)}"
    for cells in zip(*shown.values(), strict=True):
        yield f"| {' | '.join(cells)} |"
    yield ""


def _figure(row: PaperRow, figure: Figure | None) -> str:
    if figure is None:
        return ""
    kind = "" if figure.kind == "simulated" else f", {figure.kind}"
    range_ = f" ({band_in_words(figure.range, row.unit)})" if figure.range else ""
    return f"{band_in_words(figure.value, row.unit)}{range_}{kind}"
