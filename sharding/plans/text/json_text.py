"""JSON as people write it: what is short stands on one line, and what is long has one entry a line.

`Plan.to_json` writes plan files in this form.
"""

import json
from typing import Any

LINE = 100
"""Characters of a line with an object or a list of objects; a list of numbers or words is never divided."""


def json_text(value: Any, indent: str = "") -> str:
    """A value as JSON, whose further lines begin with an indent."""
    line = json.dumps(value)
    nested = isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))
    if not nested or len(indent) + len(line) <= LINE:
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        entries = [f"{json.dumps(key)}: {json_text(item, inner)}" for key, item in value.items()]
        opening, closing = "{", "}"
    else:
        entries = [json_text(item, inner) for item in value]
        opening, closing = "[", "]"
    lines = ",\n".join(inner + entry for entry in entries)
    return f"{opening}\n{lines}\n{indent}{closing}"
