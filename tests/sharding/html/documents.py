"""Pages and fragments as trees, and what must hold for all of them."""

import re
import xml.etree.ElementTree
from xml.etree.ElementTree import Element

_LOADING = re.compile(r"https?:|@import|url\(")


def parsed_page(page: str) -> Element:
    """A page as a tree; fails if it is not well-formed, has a script or loads anything."""
    assert page.startswith("<!doctype html>\n")
    root = xml.etree.ElementTree.fromstring(page.removeprefix("<!doctype html>"))
    assert not list(root.iter("script"))
    _check_loads_nothing(root)
    return root


def parsed_fragment(fragment: str) -> Element:
    """A notebook fragment as a tree; fails unless it is well-formed and depends on no script, style sheet or id."""
    root = xml.etree.ElementTree.fromstring(fragment)
    _check_loads_nothing(root)
    assert not {node.tag for node in root.iter()} & {"script", "style"}
    assert not [node for node in root.iter() if node.get("id")]
    return root


def _check_loads_nothing(root: Element) -> None:
    for node in root.iter():
        for name in ("src", "href", "data", "action"):
            assert (node.get(name) or "data:").startswith("data:"), (node.tag, node.attrib)
        if node.tag == "style":
            assert not _LOADING.search(node.text or "")


def words(node: Element) -> str:
    """All text of an element, with single spaces."""
    return " ".join("".join(node.itertext()).split())


def tables(root: Element) -> list[list[list[str]]]:
    """The texts of the cells of all tables, their heading first."""
    return [[[words(cell) for cell in row] for row in table.iter("tr")] for table in root.iter("table")]


def tick_positions(root: Element) -> list[tuple[float, float]]:
    """(x, label) of the ticks of all bottom axes."""
    ticks = [node for node in root.iter("text") if node.get("class") == "tick"]
    return [(float(node.get("x") or 0), float((node.text or "").replace(",", ""))) for node in ticks]
