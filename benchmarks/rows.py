"""What a benchmark measured, as rows: the table of them, and whether every goal is met.

A row has `name`, `value`, `goal`, `met` (None where there is no goal) and a figure or a word to set beside them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

_MET = {True: "yes", False: "no", None: ""}


def every_goal_met(rows: Sequence[Row]) -> bool:
    """Whether no row misses its goal."""
    return all(row["met"] in (True, None) for row in rows)


def print_table(rows: Sequence[Row], beside: str, digits: int) -> None:
    """Prints the rows as a table.

    Args:
        rows: In order.
        beside: Name of the figure, or of the words, set beside each value.
        digits: Significant ones of every figure.
    """
    from rich.console import Console
    from rich.table import Table

    def figure(value: float | int | str | None) -> str:
        if isinstance(value, str):
            return value
        return "" if value is None else f"{value:.{digits}g}"

    table = Table()
    for name in ("name", "value", "goal", "met", beside):
        table.add_column(name, justify="left" if name == "name" else "right")
    for row in rows:
        value, goal, other = (figure(row[key]) for key in ("value", "goal", beside))
        table.add_row(row["name"], value, goal, _MET[row["met"]], other)
    Console(highlight=False).print(table)
