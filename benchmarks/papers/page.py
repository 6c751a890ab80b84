"""The rows as a page: a drawing and a table for every figure, the assumptions, and the orders of systems."""

import pathlib
from collections.abc import Iterator, Sequence

from benchmarks.papers.markdown import results_page
from benchmarks.papers.orders import ORDERS, check_orders
from benchmarks.papers.panels import LINE, WIDTH, draw_legend, draw_panel, draw_picture, has_published, panels_of
from benchmarks.papers.paper_rows import PaperRow
from benchmarks.papers.tables import PAPER_TITLES, cells
from configs.common.errors import UserError
from sharding.html.elements import Html, element, join, table
from sharding.html.page import page
from sharding.html.svg import drawing

TITLE = "Four papers' tables beside ours"
_READING = (
    "Figures of ours are simulated unless the table says otherwise. The range of a simulated figure comes from "
    "published runs which calibrated nothing. An MFU has two ends: the squares of causal attention halved, and whole."
)


def write_page(path: str, rows: Sequence[PaperRow]) -> None:
    """Writes the page, by the end of its name: .svg gets drawings alone (`picture`), .md tables alone, all else HTML.

    Raises:
        UserError: The file cannot be written.
    """
    by_ending = {".svg": picture, ".md": results_page}
    try:
        file = pathlib.Path(path)
        file.write_text(by_ending.get(file.suffix, papers_page)(rows), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--page: {path} cannot be written: {error.strerror}") from error


def picture(rows: Sequence[PaperRow]) -> str:
    """The drawings of figures of which something was published, and of multimodal over text-only throughput."""
    chosen = [panel for panel in panels_of(rows) if has_published(panel) or panel[0].paper == "text_only"]
    return draw_picture(chosen)


def papers_page(rows: Sequence[PaperRow]) -> str:
    """The page of all rows."""
    return page(TITLE, element("p", _READING), drawing(2 * WIDTH, LINE, "Marks", draw_legend(0, 14)), *_sections(rows))


def _sections(rows: Sequence[PaperRow]) -> Iterator[Html]:
    checked = check_orders(ORDERS, rows)
    for paper, title in PAPER_TITLES.items():
        of_paper = [row for row in rows if row.paper == paper]
        if not of_paper:
            continue
        yield element("h2", title)
        notes = list(dict.fromkeys(note for row in of_paper for note in row.assumptions))
        for panel in panels_of(of_paper):
            yield draw_panel(panel)
            yield element("details", element("summary", "Figures"), _table(panel, notes))
        yield element("h3", "Assumptions")
        yield element("ol", (element("li", note) for note in notes))
        orders = [order.words for order in checked if order.order.paper == paper]
        if orders:
            yield element("h3", "Orders of systems")
            yield element("ul", (element("li", words) for words in orders))


def _table(panel: Sequence[PaperRow], notes: Sequence[str]) -> Html:
    figures = ("#published", "#at its layout", "#range", "#our best", "#range of it")
    columns = ("row", "system", *figures, "plan", "kind", "assumes")
    body = [
        (
            *cells(row)[1:3],
            *cells(row)[4:],
            row.best_plan,
            next(figure.kind for figure in (row.at_layout, row.best) if figure),
            ", ".join(str(notes.index(note) + 1) for note in row.assumptions),
        )
        for row in panel
    ]
    return join([table(columns, body)])
