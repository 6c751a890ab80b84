"""What `mmjax.plan` and `mmjax.simulate` show: policies side by side, why devices idle, where units lie."""

import json
import math
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sharding.planners.auto import PolicyResult
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.simulation.timeline import IDLE_CAUSES, Timeline

_SHOWN = 0.0005  # of a step; less is a dot
_LEAST_WIDTH = 120


def report_console() -> Console:
    """Where reports go; a terminal that is narrower than the tables breaks their lines rather than losing columns."""
    console = Console(highlight=False)
    return Console(highlight=False, width=max(console.width, _LEAST_WIDTH))


def plan_document(
    problem: PlanningProblem, outcomes: Sequence[PolicyResult], choice: PolicyResult, bound: float
) -> dict[str, Any]:
    """Everything, for scripts: seconds, bytes, shares; no bound where modules cannot all have devices of their own."""
    return {
        "cluster": problem.cluster.name,
        "devices": problem.devices,
        "rows": problem.rows,
        "bound_seconds": bound if math.isfinite(bound) else None,
        "policies": [_entry(outcome, bound) for outcome in outcomes],
        "choice": choice.policy,
        "plan": json.loads(choice.plan.to_json()),
    }


def _entry(outcome: PolicyResult, bound: float) -> dict[str, Any]:
    if not outcome.simulated:
        return {"policy": outcome.policy, "reason": outcome.reason}
    timeline = outcome.timeline
    return {
        "policy": outcome.policy,
        "above_bound": timeline.step / bound - 1 if math.isfinite(bound) else None,
        **timeline.summary(),
        "plan": json.loads(outcome.plan.to_json()),
    }


def print_comparison(
    problem: PlanningProblem, outcomes: Sequence[PolicyResult], choice: PolicyResult, bound: float, console: Console
) -> None:
    """Three tables and the reason of the choice."""
    found = [outcome for outcome in outcomes if outcome.simulated]
    memory = _bytes(problem.cluster.memory)
    title = (
        f"{problem.rows:,} rows a step on at most {problem.devices:,} devices of {problem.cluster.name}, {memory} each"
    )
    console.print(_policies(problem, found, choice, bound, title))
    console.print(_idle(found))
    console.print(_units(found))
    for outcome in outcomes:
        if not outcome.simulated:
            console.print(f"{outcome.policy}: {outcome.reason}", soft_wrap=True)
    console.print(_why(found, choice, bound), soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    """A table narrow enough for many a terminal: headings break where they have a space."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, name in enumerate(columns):
        table.add_column(name.replace(" ", "\n"), justify="right" if number else "left", no_wrap=True)
    return table


def _policies(
    problem: PlanningProblem, found: Sequence[PolicyResult], choice: PolicyResult, bound: float, title: str
) -> Table:
    columns = ("policy", "step", "MFU", "tokens/s", "devices", "micro- batches", "busy", "fullest stage", "above bound")
    table = _table(title, *columns)
    for outcome in found:
        timeline = outcome.timeline
        fullest = max(timeline.lane_peak_memory(lane) for lane in timeline.lanes)
        table.add_row(
            outcome.policy,
            f"{timeline.step:.2f} s" if timeline.step >= 1 else f"{timeline.step * 1e3:.2f} ms",
            f"{timeline.mfu:.1%}",
            f"{timeline.tokens_per_second:,.0f}",
            f"{outcome.plan.device_count:,}",
            f"{outcome.plan.microbatches:,}",
            f"{timeline.busy / timeline.step:.0%}",
            _bytes(fullest),
            f"{timeline.step / bound - 1:.0%}" if math.isfinite(bound) else "",
            style="bold" if outcome is choice else None,
        )
    return table


def _idle(found: Sequence[PolicyResult]) -> Table:
    """One column a cause; the words are those of `sharding.simulation.idle_time.CAUSES`."""
    causes = [cause for cause in IDLE_CAUSES if any(_share(outcome.timeline, cause) >= _SHOWN for outcome in found)]
    table = _table("Share of the step in which devices idle", "policy", *causes)
    for outcome in found:
        shares = [_share(outcome.timeline, cause) for cause in causes]
        table.add_row(outcome.policy, *(f"{share:.1%}" if share >= _SHOWN else "." for share in shares))
    return table


def _share(timeline: Timeline, cause: str) -> float:
    return timeline.idle[cause] / timeline.step


def _units(found: Sequence[PolicyResult]) -> Table:
    units = [unit for outcome in found for unit in outcome.plan.units]
    given = [key for key in ("cp", "ep") if any(getattr(unit, key) > 1 for unit in units)]
    columns = ("policy", "unit", "devices", "dp", *given, "tp", "pp", "chunks", "layers", "recompute", "memory", "MFU")
    table = _table("Where modules lie; layers are those of a stage", *columns)
    for outcome in found:
        timeline = outcome.timeline
        for unit in outcome.plan.units:
            lanes = [lane for lane in timeline.lanes if lane.rank[0] == unit.name]
            table.add_row(
                outcome.policy if unit is outcome.plan.units[0] else "",
                " > ".join(unit.modules),
                f"{len(unit.devices):,}",
                *(str(getattr(unit, key)) for key in ("dp", *given, "tp", "pp", "chunks")),
                "-".join(map(str, sorted({min(unit.layers), max(unit.layers)}))),
                ", ".join(dict.fromkeys(unit.recompute)),
                _bytes(max(timeline.lane_peak_memory(lane) for lane in lanes)),
                f"{timeline.mfu_by_unit[unit.name]:.0%}",
            )
        table.add_section()
    return table


def print_timeline(timeline: Timeline, plan: Plan, problem: PlanningProblem, console: Console) -> None:
    """What a step comes to, a table of its stages, and every stage that does not fit."""
    console.print(
        f"{timeline.step:.3f} s a step on {plan.device_count:,} devices of {problem.cluster.name}, "
        f"MFU {timeline.mfu:.1%} of all of them, {timeline.tokens_per_second:,.0f} tokens/s",
        soft_wrap=True,
    )
    causes = [cause for cause in IDLE_CAUSES if _share(timeline, cause) >= _SHOWN]
    table = _table("Stages; shares of the step", "unit", "stage", "devices", "busy", "memory", *causes)
    for lane in timeline.lanes:
        idle = timeline.lane_idle(lane)
        table.add_row(
            lane.rank[0],
            str(lane.rank[1]),
            f"{len(lane.devices):,}",
            f"{timeline.lane_busy(lane) / timeline.step:.1%}",
            _bytes(timeline.lane_peak_memory(lane)),
            *(f"{idle.get(cause, 0.0) / timeline.step:.1%}" for cause in causes),
        )
    console.print(table)
    for lane in timeline.lanes:
        needed, room = timeline.lane_peak_memory(lane), problem.cluster.memory
        if needed > room:
            console.print(
                f"{lane.rank[0]} {lane.rank[1]} does not fit: it needs {_bytes(needed)} of the {_bytes(room)} of a "
                f"device, {_bytes(needed - room)} too many",
                soft_wrap=True,
            )


def _why(found: Sequence[PolicyResult], choice: PolicyResult, bound: float) -> str:
    step = choice.timeline.step
    idle = sorted(IDLE_CAUSES, key=lambda cause: -choice.timeline.idle[cause])[:2]
    lost = " and ".join(f"{cause} ({_share(choice.timeline, cause):.0%})" for cause in idle)
    others = [outcome for outcome in found if outcome is not choice]
    against = ""
    if others:
        second = min(others, key=lambda outcome: outcome.timeline.step)
        against = (
            f" The next best, {second.policy}, takes {second.timeline.step / step:.2f} times as long at "
            f"{second.timeline.mfu:.1%} MFU."
        )
    distance = "There are too few devices to give each module its own."
    if math.isfinite(bound):
        side = "above" if step >= bound else "below"
        distance = (
            f"Its step is {abs(step / bound - 1):.0%} {side} the bound, {bound:.3g} s: the optimum if every module had "
            "devices of its own, divided at will, and all rows were alike."
        )
    ringed = ", ".join(unit.name for unit in choice.plan.units if unit.cp > 1)
    remark = f" It cannot be trained yet: sequence ranks of {ringed} are simulated only." if ringed else ""
    return f"Choice: {choice.policy}, the shortest simulated step.{against} {distance} Most is lost to {lost}.{remark}"


def _bytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
