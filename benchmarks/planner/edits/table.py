"""The table of edited plans for people."""

from collections.abc import Sequence

from benchmarks.rows import Row, every_goal_met

_SHOWN_FIELDS = 4


def print_edits(rows: Sequence[Row]) -> None:
    """Prints the rows of `edits_row`: a table, each plan's best edit, and whether all plans are within the goal."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title="Random edits of a single field of chosen plans, simulated")
    for heading in ("problem", "policy", "step", "devices", "valid", "refused", "shorter by"):
        table.add_column(heading, justify="left" if heading in ("problem", "policy") else "right")
    for row in rows:
        table.add_row(
            row["name"],
            row["policy"],
            f"{row['step_seconds']:.3f} s",
            f"{row['devices']:,}",
            f"{row['edits']:,}",
            f"{sum(row['refused'].values()):,}",
            f"{row['value']:.2%}",
        )
    console.print(table)
    for row in rows:
        console.print(_details(row), soft_wrap=True)
    goal = max(row["goal"] for row in rows)
    beyond = [row["name"] for row in rows if not row["met"]]
    said = "No edit shortens a" if every_goal_met(rows) else f"On {', '.join(beyond)} an edit shortens the"
    console.print(f"{said} step by more than {goal:.1%}.", soft_wrap=True)


def _details(row: Row) -> str:
    """The best edit of a plan, the fields of which an edit helps, and why edits were refused."""
    refused = ", ".join(f"{reason} {count}" for reason, count in row["refused"].items()) or "none"
    counts = f"{row['draws']:,} draws; {row['longer_by_bound']} longer by their bounds; refused: {refused}"
    if not row["best"]:
        return f"{row['name']}: no edit shortens the step. {counts}"
    devices = ""
    if row["best_devices"] != row["devices"]:
        devices = f" on {row['best_devices']:,} devices, {row['best_more_device_seconds']:+.1%} device-seconds"
    fields = ", ".join(f"{field} {share:.2%}" for field, share in list(row["fields"].items())[:_SHOWN_FIELDS])
    return f"{row['name']}: {row['best']}{devices}. By field: {fields}. {counts}"
