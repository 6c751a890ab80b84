"""A self-contained page: no server, no network, light and dark, for screen and paper."""

import json
import pathlib
from collections.abc import Iterable
from typing import Any

from sharding.html.elements import Html, element, join

_STYLE = pathlib.Path(__file__).with_name("page.css")


def page(title: str, *body: str | Iterable[str], style: str = "", script: str = "") -> str:
    """An HTML document.

    Args:
        title: Its title, which is also its heading.
        body: What follows the heading; text that is not `Html` is escaped.
        style: CSS in addition to that of all pages (`page.css`).
        script: JavaScript that runs when the body is there.
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
    scripts = element("script", Html(script)) if script else ""
    document = element("html", head, element("body", element("h1", title), join(body), scripts), lang="en")
    return f"<!doctype html>\n{document}\n"


def embedded_json(identifier: str, data: Any) -> Html:
    """Data for a script: `JSON.parse(document.getElementById(identifier).textContent)`."""
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return element("script", Html(text), type="application/json", id=identifier)
