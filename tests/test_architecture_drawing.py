"""The drawing of the architecture: the SVG is that of its source, and the folders it names exist."""

import pathlib
import re
import xml.etree.ElementTree as ElementTree

HOME = pathlib.Path(__file__).resolve().parents[1]
SOURCE = HOME / "docs" / "reference" / "architecture.dot"
DRAWING = SOURCE.with_suffix(".svg")
REDRAW = "draw it again, by the command in architecture.dot"
GROUP = "{http://www.w3.org/2000/svg}g"
TITLE = "{http://www.w3.org/2000/svg}title"
TEXT = "{http://www.w3.org/2000/svg}text"


def described() -> tuple[dict[str, list[str]], set[str]]:
    """The nodes of the source, each with the lines of its label, and its edges."""
    source = SOURCE.read_text()
    nodes = re.findall(r'^ +(\w+) \[label="([^"]*)"', source, re.MULTILINE)
    edges = re.findall(r"^ +(\w+) -> (\w+)\b", source, re.MULTILINE)
    return {name: label.split("\\n") for name, label in nodes}, {f"{begin}->{end}" for begin, end in edges}


def drawn() -> tuple[dict[str, list[str]], set[str]]:
    """The nodes and edges of the SVG, as `described` has them of its source."""
    nodes, edges = {}, set()
    for group in ElementTree.parse(DRAWING).iter(GROUP):
        title = group.findtext(TITLE) or ""
        if group.get("class") == "node":
            nodes[title] = [text.text or "" for text in group.iter(TEXT)]
        elif group.get("class") == "edge":
            edges.add(re.sub(r":\w+", "", title))
    return nodes, edges


def test_the_drawing_has_the_nodes_and_the_edges_of_its_source():
    assert drawn() == described(), REDRAW


def test_every_edge_of_the_source_joins_two_of_its_nodes():
    nodes, edges = described()
    assert {name for edge in edges for name in edge.split("->")} == set(nodes)


def test_the_folders_that_the_drawing_names_exist():
    folders = [folder for _, folder in described()[0].values()]
    assert [folder for folder in folders if not (HOME / folder).is_dir()] == []
