"""Rows of papers: ranges of figures, orders of systems, JSON, the printed table and the page."""

import json
import xml.etree.ElementTree

import numpy as np
import pytest

from benchmarks.papers import page, panels, tables
from benchmarks.papers.orders import ORDERS, SystemOrder, check_orders
from benchmarks.papers.paper_rows import Band, Figure, PaperRow, exactly
from benchmarks.papers.ranges import rate_figure, ratio_figure, share_figure, step_figure
from configs.common.errors import UserError
from sharding.costs.published_errors import published_errors, step_range


def simulated(value: float, least: float, most: float) -> Figure:
    return Figure("simulated", exactly(value), Band(least, most))


def row(
    system: str, figure: Figure, published: Band | None = None, best: Figure | None = None, title: str = "Model A"
) -> PaperRow:
    return PaperRow(
        paper="optimus",
        place="a table",
        row=title,
        system=system,
        quantity="seconds",
        unit="seconds",
        published=published,
        at_layout=figure,
        best=best,
        best_plan="fsdp, 8 devices" if best else "",
        assumptions=("as in the text",),
    )


def rows() -> list[PaperRow]:
    return [
        row("slow", simulated(4.0, 3.0, 7.0), exactly(5.0)),
        row("fast & small", simulated(2.0, 1.5, 3.5), Band(3.6, 3.7), simulated(1.0, 0.8, 1.7)),
        row("slow", Figure("computed", exactly(4.0), None), title="Model B"),
    ]


@pytest.mark.parametrize(
    ("published", "within"),
    [(Band(1.0, 1.4), False), (Band(1.0, 1.6), True), (exactly(2.2), True), (Band(2.6, 3.0), False), (None, None)],
)
def test_what_was_published_may_lie_in_the_range(published, within):
    assert row("x", simulated(2.0, 1.5, 2.5), published).within is within
    assert row("x", Figure("computed", exactly(2.0), None), exactly(2.0)).within is None


def test_a_row_without_a_figure_of_ours_is_refused():
    with pytest.raises(ValueError, match="has no figure of ours"):
        PaperRow(paper="optimus", place="t", row="r", system="s", quantity="q", unit="share", published=exactly(1.0))


def test_ranges_of_steps_and_rates_are_those_of_the_step():
    families = ("pipeline", "diffusion")
    least, most, _ = step_range(10.0, families)
    assert step_figure(10.0, families).range == (least, most)
    assert step_figure(10.0, families, 2.0) == Figure("simulated", exactly(20.0), Band(2 * least, 2 * most))
    figure = rate_figure(Band(0.4, 0.5), 10.0, families)
    assert figure.range == pytest.approx((0.4 * 10 / most, 0.5 * 10 / least))


def test_the_range_of_a_ratio_is_that_of_the_ratios_of_two_errors():
    errors = 1 + np.array([*published_errors()["fully_sharded"].values()])
    ratios = [one / other for i, one in enumerate(errors) for j, other in enumerate(errors) if i != j]
    figure = ratio_figure(2.0, ("fully_sharded",), ("fully_sharded",))
    assert figure.range == pytest.approx(2 * np.quantile(ratios, (0.1, 0.9)))
    others = 1 + np.array([*published_errors()["pipeline"].values()])
    across = ratio_figure(1.0, ("fully_sharded",), ("pipeline",))
    assert across.range == pytest.approx(np.quantile(np.divide.outer(errors, others), (0.1, 0.9)))


def test_a_share_is_at_most_the_whole():
    figure = share_figure(0.95, ("pipeline",))
    assert figure.range is not None and figure.range.least < 0.95 and figure.range.most == 1.0


def order(*systems: str) -> SystemOrder:
    return SystemOrder(
        paper="optimus", place="a table", quantity="seconds", systems=systems, source="section 1", why="Because."
    )


def test_orders_are_compared_in_rows_that_have_all_systems():
    (holds,) = check_orders([order("fast & small", "slow")], rows())
    assert (holds.row, holds.holds, holds.is_tie) == ("Model A", True, False)
    assert holds.words == "a table, Model A: seconds: fast & small < slow, as in the paper (section 1)"
    (differs,) = check_orders([order("slow", "fast & small")], rows())
    assert not differs.holds and differs.is_tie  # 3.0 to 7.0 and 1.5 to 3.5
    assert differs.words.endswith("; their ranges overlap. Because.")
    assert check_orders([order("slow", "absent")], rows()) == []


def test_a_difference_beyond_the_ranges_is_no_tie():
    apart = [row("slow", simulated(4.0, 3.0, 7.0)), row("fast", simulated(2.0, 1.5, 2.9))]
    (differs,) = check_orders([order("slow", "fast")], apart)
    assert not differs.holds and not differs.is_tie


def test_every_order_names_systems_once():
    for stated in ORDERS:
        assert len(set(stated.systems)) == len(stated.systems) >= 2
        assert stated.source


def test_json_holds_rows_orders_and_versions_and_is_read_back(tmp_path):
    text = tables.rows_to_json(rows())
    document = json.loads(text)
    assert document.keys() == {"rows", "orders", "versions"}
    for each in document["rows"]:
        assert each.keys() == set(PaperRow.__dataclass_fields__) | {"within"}
        assert each["at_layout"].keys() == {"kind", "value", "range"}
    assert document["rows"][1]["published"] == [3.6, 3.7]
    path = tmp_path / "rows.json"
    path.write_text(text)
    assert tables.rows_of_files([str(path)]) == rows()
    path.write_text('{"rows": [{"paper": "optimus"}]}')
    with pytest.raises(UserError, match=r"--rows: .*rows.json does not hold rows"):
        tables.rows_of_files([str(path)])


def test_rows_are_printed_with_ranges_and_assumptions(capsys):
    tables.print_rows(rows())
    printed = capsys.readouterr().out
    assert "Model A, slow: 5.00 s published; 4.00 s (3.00 s to 7.00 s) simulated at its layout [1]" in printed
    assert "1.00 s (0.800 s to 1.70 s) simulated our best (fsdp, 8 devices)" in printed
    assert "[1] as in the text" in printed


def test_the_picture_has_a_panel_of_every_figure_and_a_mark_of_every_value(tmp_path):
    path = tmp_path / "papers.svg"
    page.write_page(str(path), rows())
    drawn = xml.etree.ElementTree.parse(path).getroot()
    namespace = "{http://www.w3.org/2000/svg}"
    assert len(list(drawn.iter(f"{namespace}circle"))) == 2 + 4  # with the legend's
    assert len(list(drawn.iter(f"{namespace}path"))) == 1 + 2  # with the legend's
    titles = [text.text for text in drawn.iter(f"{namespace}text")]
    assert "Optimus, a table" in titles and "fast & small" in titles
    right = max(float(circle.get("cx", 0)) for circle in drawn.iter(f"{namespace}circle"))
    assert right <= panels.WIDTH


def test_figures_below_zero_lie_beside_the_others(tmp_path):
    path = tmp_path / "papers.svg"
    page.write_page(str(path), [row("less", Figure("computed", exactly(-0.5), None), Band(0.0, 2.0))])
    circles = xml.etree.ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}circle")
    *_, dot = (float(circle.get("cx", 0)) for circle in circles)
    assert panels.LABELS < dot < (panels.LABELS + panels.WIDTH) / 2
    page.write_page(str(path), [row("less", Figure("computed", exactly(-0.5), None))])
    circles = xml.etree.ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}circle")
    *_, dot = (float(circle.get("cx", 0)) for circle in circles)
    assert panels.LABELS < dot < (panels.LABELS + panels.WIDTH) / 2  # zero is at the right end


def test_the_page_has_all_rows_and_the_orders(tmp_path):
    written = page.papers_page(rows())
    body = xml.etree.ElementTree.fromstring(written.removeprefix("<!doctype html>\n"))
    text = "".join(body.itertext())
    for part in ("Optimus, a table", "fast & small", "fsdp, 8 devices", "Assumptions", "as in the text"):
        assert part in text
    with pytest.raises(UserError, match="--page: .* cannot be written"):
        page.write_page(str(tmp_path / "no" / "page.html"), rows())
