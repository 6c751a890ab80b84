"""HTML and SVG elements as text. Everything is escaped but what these functions returned."""

import html
from collections.abc import Iterable, Sequence

_SHORT, _LONG = 20, 40  # characters of a cell

_VOID = {"br", "hr", "img", "input", "link", "meta"}


class Html(str):
    """Text that is HTML already. `element` escapes any other text."""


def element(name: str, /, *children: "str | Iterable[str]", **attributes: object) -> Html:
    """An element. It is well-formed XML too.

    Args:
        name: Its tag.
        children: Its content in order; text that is not `Html` is escaped.
        attributes: `class_` is class, `aria_label` is aria-label; None leaves an attribute out, True leaves it bare.
    """
    written = "".join(
        _attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(children: "Iterable[str | Iterable[str]]") -> Html:
    """The children one after another, escaped where they are not `Html`."""
    parts = []
    for child in children:
        if isinstance(child, Html):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(html.escape(child, quote=False))
        else:
            parts.append(join(child))
    return Html("".join(parts))


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f' {name}=""'
    text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(text)}"'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", chosen: Sequence[int] = ()) -> Html:
    """A table that scrolls sideways where it is wider than the page.

    Args:
        columns: Headings. Those that start with # are of numbers, which are aligned right.
        rows: The cells of every row.
        caption: What the table shows.
        chosen: Numbers of the rows to print bold.
    """
    classes = ["number" if name.startswith("#") else None for name in columns]
    head = element(
        "tr", (_cell("th", name.lstrip("#"), kind, scope="col") for name, kind in zip(columns, classes, strict=True))
    )
    body = (
        element(
            "tr",
            (_cell("td", cell, kind) for cell, kind in zip(row, classes, strict=True)),
            style="font-weight:bold" if number in chosen else None,
        )
        for number, row in enumerate(rows)
    )
    titled = element("caption", element("span", caption)) if caption else ""
    inner = element("table", titled, element("thead", head), element("tbody", body))
    return element("div", inner, class_="scroll", style="overflow-x:auto")


def _cell(name: str, /, text: str, kind: str | None, **attributes: object) -> Html:
    style = "text-align:right;white-space:nowrap" if kind else "text-align:left"
    if not kind and not isinstance(text, Html):  # a narrow table scrolls, and does not break short names into lines
        style += ";white-space:nowrap" * (len(text) <= _SHORT) + ";min-width:28ch" * (len(text) >= _LONG)
    return element(name, text, class_=kind, style=style, **attributes)


def swatch(colour: str) -> Html:
    """A small square of a colour, for legends; it needs no style sheet."""
    square = element("rect", width=12, height=12, rx=2, fill=colour)
    return element("svg", square, width=12, height=12, aria_hidden="true", style="vertical-align:-1px")


def legend(entries: Iterable[tuple[str, str]]) -> Html:
    """A line of (colour, name) entries."""
    items = (element("span", swatch(colour), f" {name}") for colour, name in entries)
    return element("div", items, class_="legend", style="display:flex;flex-wrap:wrap;gap:2px 16px")


def figures(values: Iterable[tuple[str, str]]) -> Html:
    """Large figures with their names: (name, value)."""
    items = (
        element("div", element("b", value), element("span", f" {name}"), class_="figure") for name, value in values
    )
    return element("div", items, class_="figures", style="display:flex;flex-wrap:wrap;gap:8px 30px")
