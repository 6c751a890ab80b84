"""Rows of measurements, which all benchmarks print: their table, whether every goal is met, versions of packages.

A row has `name`, `value`, `goal`, `met` (None where there is no goal) and a figure or a note to compare with.
"""

import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

_MET = {True: "yes", False: "no", None: ""}


def every_goal_met(rows: Sequence[Row]) -> bool:
    """Whether no row misses its goal."""
    return all(row["met"] in (True, None) for row in rows)


def paper_row(
    name: str, value: float, paper: float | None = None, goal: float | None = None, *, most: bool = False
) -> dict[str, Any]:
    """A row beside a paper's figure; the goal is the least that the value should be, or the most."""
    met = None if goal is None else bool(value <= goal if most else value >= goal)
    return {"name": name, "value": float(value), "goal": goal, "met": met, "paper": paper}


def print_table(rows: Sequence[Row], comparison_key: str, digits: int) -> None:
    """Prints the rows as a table.

    Args:
        rows: The rows in order.
        comparison_key: Key of the figure or note printed after each value.
        digits: Significant digits of every figure.
    """
    from rich.console import Console
    from rich.table import Table

    def cell(value: float | int | str | None) -> str:
        if isinstance(value, str):
            return value
        return "" if value is None else f"{value:.{digits}g}"

    table = Table()
    for name in ("name", "value", "goal", "met", comparison_key):
        table.add_column(name, justify="left" if name == "name" else "right")
    for row in rows:
        value, goal, figure = (cell(row[key]) for key in ("value", "goal", comparison_key))
        table.add_row(row["name"], value, goal, _MET[row["met"]], figure)
    Console(highlight=False).print(table)


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter for speed."""
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy", "optax", "scipy")
    }


def report(rows: Sequence[Row], comparison_key: str, digits: int, as_json: bool) -> int:
    """Prints the rows, as a table or with the versions of packages as JSON; the exit status, 1 if a goal is missed.

    Args:
        rows: The rows in order.
        comparison_key, digits: As in `print_table`.
        as_json: Whether to print JSON.
    """
    if as_json:
        print(json.dumps({"rows": rows, "versions": package_versions()}))
    else:
        print_table(rows, comparison_key, digits)
    return 0 if every_goal_met(rows) else 1
