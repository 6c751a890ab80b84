"""The figures of all runs, as rows with goals and as a table by kind of fault."""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.faults.campaign import RunOutcome
from benchmarks.faults.execution import DETECTION_BOUND, START_BOUND, FaultOutcome
from benchmarks.faults.kinds import KINDS
from benchmarks.rows import Row


def goal_rows(outcomes: Sequence[RunOutcome], count: int) -> list[Row]:
    """Rows of the figures that must be 0, or all."""
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    parts = [*faults, *(outcome.ending for outcome in outcomes)]
    last_saves = sum(part.failed_last_save for part in parts)
    finished = [outcome.comparison for outcome in outcomes if outcome.comparison]
    by_id = sum(not outcome.with_producers for outcome in outcomes if outcome.comparison)
    return [
        _row("faults", len(faults), count, f"in {len(outcomes)} runs of 2 to 4 processes"),
        _row(
            "hangs beyond the bound",
            sum(bool(part.hang) for part in parts),
            0,
            f"{DETECTION_BOUND:g} s to detect, {START_BOUND:g} s at a start",
        ),
        _row(
            "launcher gave up",
            sum(part.exit_code is not None for part in parts) - last_saves,
            0,
            f"{last_saves} more after a last save that failed",
        ),
        _row("runs that did not finish", len(outcomes) - len(finished), 0, f"of {len(outcomes)}"),
        _row("samples lost", sum(end.lost for end in finished), 0, f"ids of {by_id} epochs"),
        _row("samples repeated", sum(end.repeated for end in finished), 0, f"ids of {by_id} epochs"),
        _row("end states that differ", sum(not end.equal for end in finished), 0, f"of {len(finished)}"),
    ]


def _row(name: str, value: int, goal: int, note: str) -> Row:
    return {"name": name, "value": value, "goal": goal, "met": value == goal, "note": note}


def kind_rows(faults: Sequence[FaultOutcome]) -> list[dict[str, Any]]:
    """Figures by kind of fault: how many, hangs, ends of the launcher, and seconds to detect and to resume."""
    rows = []
    for kind in KINDS:
        kind_faults = [fault for fault in faults if fault.kind == kind.name]
        if not kind_faults:
            continue
        rows.append(
            {
                "kind": kind.name,
                "faults": len(kind_faults),
                "hangs": sum(bool(fault.hang) for fault in kind_faults),
                "launcher_ended": sum(fault.exit_code is not None for fault in kind_faults),
                "detection": _median_and_worst([fault.detection for fault in kind_faults]),
                "resumption": _median_and_worst([fault.resumption for fault in kind_faults]),
            }
        )
    return rows


def _median_and_worst(seconds: Sequence[float | None]) -> tuple[float, float] | None:
    known = [value for value in seconds if value is not None]
    return (statistics.median(known), max(known)) if known else None


def kind_table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table in Markdown."""
    lines = ["| fault | faults | hangs | seconds to detect | seconds to resume |", "|---|---|---|---|---|"]
    for row in rows:
        seconds = (
            "" if pair is None else f"{pair[0]:.1f} (worst {pair[1]:.1f})"
            for pair in (row["detection"], row["resumption"])
        )
        lines.append(f"| {row['kind']} | {row['faults']} | {row['hangs']} | {' | '.join(seconds)} |")
    return "\n".join(lines)


def describe_run(outcome: RunOutcome) -> str:
    """Describes a run, with a line for each fault."""
    producers = ", batches from producers" if outcome.with_producers else ""
    lines = [f"run of {outcome.processes} processes{producers}"]
    for fault in outcome.faults:
        seconds = ", ".join(
            f"{name} after {value:.1f} s"
            for name, value in (("detected", fault.detection), ("resumed", fault.resumption))
            if value is not None
        )
        ended = "" if fault.exit_code is None else f"; the launcher ended with code {fault.exit_code}"
        lines.append(f"  {fault.kind}, {fault.phase}: {fault.what}; {seconds or 'no time measured'}{ended}")
        if fault.hang:
            lines += [f"    HANG: {line}" for line in fault.hang.splitlines()]
    if outcome.ending.exit_code is not None:
        lines.append(f"  after its faults: the launcher ended with code {outcome.ending.exit_code}")
    lines += [f"    HANG: {line}" for line in outcome.ending.hang.splitlines()]
    end = outcome.comparison
    if end is None:
        return "\n".join([*lines, "  it did not finish"])
    if end.equal:
        difference = max(end.difference, end.optimizer_difference)
        same = "bit for bit" if not difference else f"to {difference:.0e}"
        return "\n".join([*lines, f"  ended as the undisturbed run, {same}"])
    return "\n".join([*lines, f"  ENDED OTHERWISE: {end}"])
