"""`python -m benchmarks.balancing`: how fast and how level the balancing of data is, beside the papers' algorithms.

A row each with name, value, goal, whether it is met, and the value of a reference: an implementation of the paper's
pseudo-code, or of public code's way, in the same run. Times are milliseconds unless the name says otherwise, and differ
between machines; their ratios to the reference's matter.
"""

import importlib.metadata
import json
import platform
from collections.abc import Mapping
from typing import Any

from absl import flags

from mmjax import cli

_JSON = flags.DEFINE_bool("json", False, "Print one JSON document instead of a table.")


def main() -> int:
    """0 if every goal is met, else 1."""
    from benchmarks import balancing_grouping, balancing_lengths, balancing_order

    rows = [row for part in (balancing_grouping, balancing_lengths, balancing_order) for row in part.measure()]
    if _JSON.value:
        versions = {name: importlib.metadata.version(name) for name in ("numpy", "scipy")}
        print(json.dumps({"rows": rows, "versions": {"python": platform.python_version()} | versions}))
    else:
        _show(rows)
    return 0 if all(row["met"] in (True, None) for row in rows) else 1


def _show(rows: list[Mapping[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in ("name", "value", "goal", "met", "reference"):
        table.add_column(name, justify="left" if name == "name" else "right")
    for row in rows:
        met = {True: "yes", False: "no", None: ""}[row["met"]]
        table.add_row(row["name"], *map(_number, (row["value"], row["goal"])), met, _number(row["reference"]))
    Console(highlight=False).print(table)


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.6g}"


if __name__ == "__main__":
    cli.run(main)
