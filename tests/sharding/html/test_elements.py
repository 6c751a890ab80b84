import xml.etree.ElementTree

import pytest

from sharding.html.elements import Html, element, figures, legend, table
from sharding.html.page import page
from sharding.html.svg import Scale, bottom_axis, drawing, left_axis, rectangle, text


def test_text_is_escaped_and_elements_are_not():
    made = element("p", "a < b & ", element("b", "</p>"), ["x", Html("<i/>")], class_="note", title='"', hidden=None)
    assert made == '<p class="note" title="&quot;">a &lt; b &amp; <b>&lt;/p&gt;</b>x<i/></p>'
    assert element("br") == "<br/>" and element("details", open=True) == '<details open=""></details>'
    assert element("div", tabindex=0, x=0.0, hidden=False) == '<div tabindex="0" x="0"></div>'
    assert element("rect", x=1.0, y=0.126, width=3) == '<rect x="1" y="0.13" width="3"></rect>'


def test_tables_have_a_heading_of_every_column_and_bold_rows():
    made = xml.etree.ElementTree.fromstring(table(["name", "#n"], [["a", "1"], ["<b>", "2"]], "Both", chosen=[1]))
    assert [cell.text for cell in made.iter("th")] == ["name", "n"]
    assert [cell.text for cell in made.iter("td")] == ["a", "1", "<b>", "2"]
    assert [row.get("style") for row in made.find("table/tbody")] == [None, "font-weight:bold"]
    assert [cell.get("class") for cell in made.iter("td")] == [None, "number"] * 2
    with pytest.raises(ValueError, match="zip"):
        table(["one"], [["a", "b"]])


def test_a_page_is_well_formed_and_loads_nothing():
    made = page("A & B", figures([("share", "1%")]), legend([("#fff", "x")]))
    root = xml.etree.ElementTree.fromstring(made.removeprefix("<!doctype html>"))
    assert root.find("head/title").text == root.find("body/h1").text == "A & B"
    assert "http" not in made and "src=" not in made


def test_ticks_of_an_axis_are_even_and_leave_room_for_their_labels():
    for width, end in [(60, 1234.5), (400, 1234.5), (400, 0.037), (300, 3)]:
        scale = Scale(0, end, 10, 10 + width)
        axis = xml.etree.ElementTree.fromstring(bottom_axis(scale, 50, "ms"))
        labels = [node for node in axis.iter("text") if node.get("class") == "tick"]
        at = [scale(float(label.text.replace(",", ""))) for label in labels]
        apart = [right - left for left, right in zip(at, at[1:], strict=False)]
        assert len(apart) >= 1 and apart == pytest.approx([apart[0]] * len(apart), rel=1e-6)
        assert min(apart) >= 7.2 * max(len(label.text) for label in labels)
        assert [node.text for node in axis.iter("text")].count("ms") == 1
    grid = xml.etree.ElementTree.fromstring(left_axis(Scale(0, 0.8, 100, 0), 30, 200, "share"))
    assert [node.text for node in grid.iter("text")] == ["0.0", "0.2", "0.4", "0.6", "0.8", "share"]


def test_a_drawing_says_what_it_shows_and_depends_on_nothing():
    made = drawing(300, 100, "Bars", rectangle(0, 0, 10, -5, "#123456", "3 of <4>"), text(1, 2, "x", "end"))
    root = xml.etree.ElementTree.fromstring(made)
    assert root.get("aria-label") == "Bars" and root.find("rect/title").text == "3 of <4>"
    assert not any(node.get("id") for node in root.iter())
