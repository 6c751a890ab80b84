"""A self-contained page: no script, no server, no network, light and dark, for screen and paper."""

import pathlib
from collections.abc import Iterable

from sharding.html.elements import Html, element, join

_STYLE = pathlib.Path(__file__).with_name("page.css")


def page(title: str, *body: str | Iterable[str], style: str = "") -> str:
    """An HTML document.

    Args:
        title: Its title, which is also its heading.
        body: What follows the heading; text that is not `Html` is escaped.
        style: CSS in addition to the style sheet of all pages (`page.css`).
    """
    sheet = Html(_STYLE.read_text(encoding="utf-8") + style)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", sheet),
    )
    document = element("html", head, element("body", element("h1", title), join(body)), lang="en")
    return f"<!doctype html>\n{document}\n"
