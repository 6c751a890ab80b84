"""A figure of these benchmarks, as a row."""

from benchmarks.rows import Row


def figure(name: str, value: float, goal: float | None, note: str, *, least: bool = False) -> Row:
    """A row whose goal, if it has one, is met by that value or a lower one; with `least`, by that or a higher one."""
    met = None if goal is None else bool(value >= goal if least else value <= goal)
    return {"name": name, "value": float(value), "goal": goal, "met": met, "note": note}
