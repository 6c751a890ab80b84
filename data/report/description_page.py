"""A description as a page that stands alone: no server, no network, any browser."""

import json
import pathlib

from data.report.description import DatasetDescription, description_json

_PAGE = pathlib.Path(__file__).with_name("description.html")


def description_html(description: DatasetDescription, title: str) -> str:
    """The page, with the description in it as JSON; a script in it draws the plots."""
    data = json.dumps({"title": title, **description_json(description)}, separators=(",", ":")).replace("</", "<\\/")
    return _PAGE.read_text(encoding="utf-8").replace("__DATA__", data)
