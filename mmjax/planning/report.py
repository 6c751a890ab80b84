"""The tables that `mmjax.plan` and `mmjax.simulate` print: plans of every policy, idle time by cause, units."""

import collections
import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from configs.common.tables import print_table, report_table
from mmjax.planning.choice import explain_choice, tied_with_choice
from mmjax.planning.idle_devices import why_devices_idle
from mmjax.planning.stage_spreads import stage_spreads
from sharding.planners.policies.auto import PolicyResult
from sharding.planners.policies.policy_comparison import PolicyComparison
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.simulation.idle.filled_idle import FilledIdle
from sharding.simulation.idle.idle_time import IDLE_CAUSES, IdleCause
from sharding.simulation.pages.html_tables import (
    efficiency_in_words,
    filled_title,
    range_in_figures,
    range_in_words,
)
from sharding.simulation.summary import timeline_summary
from sharding.simulation.timeline import Timeline
from sharding.specs.modules import ModuleGraph

_SMALLEST_SHARE = 0.0005
"""Share of a step below which a table shows a dot."""

_UNITS_TITLE = "Placement of modules; layers: of one stage, over all modules of its unit"

_TEXT_COLUMNS = ("unit", "recompute", "capacities")
"""Headings of columns whose cells may take several lines."""


def plan_document(comparison: PolicyComparison) -> dict[str, Any]:
    """Returns all results as a JSON document, in seconds, bytes and shares of a step.

    No plan's step is shorter than the bound; `above_bound` is None for a policy without a plan.
    """
    problem = comparison.problem
    return {
        "cluster": problem.cluster.name,
        "devices": problem.devices,
        "rows": problem.rows,
        "bound_seconds": comparison.bound,
        "policies": [_entry(comparison, result) for result in comparison.results],
        "choice": comparison.choice.policy,
        "tied_with_choice": tied.policy if (tied := tied_with_choice(comparison)) else None,
        "idle_devices": why_devices_idle(comparison) or None,
        "hops": problem.occupied_by_hops,
        "effects_left_out": list(problem.without),
        "stopped": comparison.stopped,
        "on_fewer_devices": [
            {**timeline_summary(result.timeline), "plan": json.loads(result.plan.to_json())}
            for result in comparison.on_fewer_devices
        ],
        "plan": json.loads(comparison.plan.to_json()),
    }


def _entry(comparison: PolicyComparison, result: PolicyResult) -> dict[str, Any]:
    if not result.simulated:
        return {"policy": result.policy, "reason": result.reason}
    timeline, spreads = result.timeline, stage_spreads(comparison.problem, result.plan)
    return {
        "policy": result.policy,
        "above_bound": comparison.above_bound(result),
        **timeline_summary(timeline),
        **({"start": result.start, "changes": list(result.changes)} if result.changes else {}),
        **({"stage_spread": spreads._asdict()} if spreads else {}),
        "plan": json.loads(result.plan.to_json()),
    }


def print_comparison(comparison: PolicyComparison, console: Console) -> None:
    """Prints the plans, their idle time, their units, and the reason of the choice."""
    problem, results = comparison.problem, comparison.results
    simulated = [result for result in results if result.simulated]
    memory = _bytes(problem.cluster.usable_memory)
    title = (
        f"Simulated steps of {problem.rows:,} rows on at most {problem.devices:,} devices of {problem.cluster.name}, "
        f"{memory} usable on each{'; ranges by published runs' if comparison.has_ranges else ''}"
    )
    print_table(_policies(comparison, simulated, title), console)
    print_table(_idle(simulated), console)
    print_table(_units(simulated), console, keys=2)
    for remark in layer_remarks(problem.graph):
        console.print(remark, soft_wrap=True)
    for result in results:
        if not result.simulated:
            console.print(f"{result.policy}: {result.reason}", soft_wrap=True)
        elif spreads := stage_spreads(problem, result.plan):
            others = ", ".join(f"{name} {value:.2f}" for name, value in spreads.others.items())
            console.print(
                f"{result.policy}: its slowest pipeline rank takes {spreads.chosen:.2f} times the mean; partitions by "
                f"other measures: {others or 'none fits'}",
                soft_wrap=True,
            )
    if comparison.on_fewer_devices:
        print_table(_fewer_devices(comparison), console)
    console.print(explain_choice(comparison), soft_wrap=True)
    if comparison.stopped:
        console.print(f"Stopped: only {len(results)} policies were compared.", soft_wrap=True)


def _policies(comparison: PolicyComparison, simulated: Sequence[PolicyResult], title: str) -> Table:
    columns = (
        "policy",
        "step",
        *_range_columns(comparison),
        "MFU",
        "MFU whole squares",
        "HFU whole squares",
        "tokens/s",
        "devices",
        "micro- batches",
        "busy",
        "fullest stage",
        "above bound",
    )
    table = report_table(title, *columns)
    for result in simulated:
        timeline, above = result.timeline, comparison.above_bound(result)
        fullest = max(timeline.lane_peak_memory(lane) for lane in timeline.lanes)
        table.add_row(
            result.policy,
            _seconds(timeline.step),
            *(range_in_figures(timeline.step_range) for _ in _range_columns(comparison)),
            f"{timeline.mfu:.1%}",
            f"{timeline.mfu_whole_squares:.1%}",
            f"{timeline.hfu_whole_squares:.1%}",
            f"{timeline.tokens_per_second:,.0f}",
            f"{result.plan.device_count:,}",
            f"{result.plan.microbatches:,}",
            f"{timeline.busy / timeline.step:.0%}",
            _bytes(fullest),
            "" if above is None else f"{above:.0%}",
            style="bold" if result is comparison.choice else None,
        )
    return table


def _range_columns(comparison: PolicyComparison) -> tuple[str, ...]:
    """The heading of the column of ranges; none where the steps have none."""
    return ("range",) if comparison.has_ranges else ()


def _idle(simulated: Sequence[PolicyResult]) -> Table:
    """Makes the table of idle time, with one column per cause of `sharding.simulation.idle_time.IDLE_CAUSES`."""
    causes: list[IdleCause] = [
        cause for cause in IDLE_CAUSES if any(_share(result.timeline, cause) >= _SMALLEST_SHARE for result in simulated)
    ]
    table = report_table("Share of the simulated step in which devices idle", "policy", *causes)
    for result in simulated:
        shares = [_share(result.timeline, cause) for cause in causes]
        table.add_row(result.policy, *(f"{share:.1%}" if share >= _SMALLEST_SHARE else "." for share in shares))
    return table


def _share(timeline: Timeline, cause: IdleCause) -> float:
    return timeline.idle[cause] / timeline.step


_RANK_COLUMNS = {"pipeline_replicas": "pipelines", "dp": "dp", "cp": "cp", "ep": "ep", "fsdp": "fsdp"}
"""Heading of each size that has a column where a unit has several; dp always has one."""


def _units(simulated: Sequence[PolicyResult]) -> Table:
    units = [unit for result in simulated for unit in result.plan.units]
    sizes = {key: max(getattr(unit.parallelism, key) for unit in units) for key in _RANK_COLUMNS}
    rank_columns = [key for key, size in sizes.items() if size > 1 or key == "dp"]
    own_rows = ("rows", "capacities") if any(unit.phase_rows for unit in units) else ()
    columns = (
        "policy",
        "unit",
        "devices",
        *(_RANK_COLUMNS[key] for key in rank_columns),
        "tp",
        "pp",
        "chunks",
        "layers",
        "recompute",
        *own_rows,
        "memory",
        "MFU",
    )
    table = report_table(_UNITS_TITLE, *columns, texts=_TEXT_COLUMNS)
    for result in simulated:
        timeline = result.timeline
        for unit in result.plan.units:
            lanes = [lane for lane in timeline.lanes if lane.rank[0] == unit.name]
            table.add_row(
                result.policy if unit is result.plan.units[0] else "",
                " > ".join(unit.modules),
                f"{len(unit.devices):,}",
                *(str(getattr(unit.parallelism, key)) for key in rank_columns),
                " ".join(map(str, unit.parallelism.module_tp or (unit.parallelism.tp,))),
                str(unit.pp),
                str(unit.parallelism.chunks),
                "-".join(map(str, sorted({min(unit.layers), max(unit.layers)}))),
                _recompute(unit),
                *_own_rows(unit, own_rows),
                _bytes(max(timeline.lane_peak_memory(lane) for lane in lanes)),
                f"{timeline.mfu_by_unit[unit.name]:.0%}",
            )
        table.add_section()
    return table


def layer_remarks(graph: ModuleGraph) -> Iterator[str]:
    """Says what counts as a layer, for modules that have blocks which no plan divides."""
    for module in graph.modules:
        if early := module.early_blocks:
            yield (
                f"{module.name} has {early + module.layer_count} blocks: the first {early} take features of an encoder "
                f"and belong to the first stage, and the other {module.layer_count} count as layers"
            )


def _recompute(unit: UnitPlan) -> str:
    """Names how many layers of a unit have each recomputation policy; the policy alone where all have one."""
    counts = collections.Counter(policy for stage in range(unit.stage_count) for policy in unit.layer_recompute(stage))
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{count} {name}" for name, count in counts.items())


def _own_rows(unit: UnitPlan, columns: Sequence[str]) -> list[str]:
    """The unit's own rows and their capacities, in these columns; empty where it has the rows of the global batch."""
    cells = {"rows": str(unit.phase_rows or ""), "capacities": " ".join(map(str, unit.capacities))}
    return [cells[column] for column in columns]


def _fewer_devices(comparison: PolicyComparison) -> Table:
    """Makes the table of the simulated step's seconds on fewer devices than the choice has."""
    table = report_table(
        "The choice, and plans on fewer devices, simulated",
        "devices",
        "step",
        *_range_columns(comparison),
        "times as long",
        "MFU",
        "MFU whole squares",
        "tokens/s",
    )
    step = comparison.timeline.step
    for result in (comparison.choice, *comparison.on_fewer_devices):
        table.add_row(
            f"{result.plan.device_count:,}",
            _seconds(result.timeline.step),
            *(range_in_figures(result.timeline.step_range) for _ in _range_columns(comparison)),
            f"{result.timeline.step / step:.2f}",
            f"{result.timeline.mfu:.1%}",
            f"{result.timeline.mfu_whole_squares:.1%}",
            f"{result.timeline.tokens_per_second:,.0f}",
        )
    return table


def print_timeline(timeline: Timeline, plan: Plan, problem: PlanningProblem, console: Console) -> None:
    """Prints the step time, a table of the stages, and every stage that does not fit into memory."""
    recomputed = (
        f", {timeline.hfu_whole_squares:.1%} if recomputed forwards count too" if timeline.hfu != timeline.mfu else ""
    )
    range_ = f" ({range_in_words(timeline.step_range)})" if timeline.step_range else ""
    of_peak = " against the peak of FP8" if timeline.costs and timeline.costs.uses_fp8 else ""
    console.print(
        f"A simulated step takes {timeline.step:.3f} s{range_} on {plan.device_count:,} devices of "
        f"{problem.cluster.name}, "
        f"MFU {timeline.mfu:.1%} of all of them ({timeline.mfu_whole_squares:.1%} if the squares of causal attention "
        f"count whole{recomputed}){of_peak}, {timeline.tokens_per_second:,.0f} tokens/s",
        soft_wrap=True,
    )
    causes: list[IdleCause] = [cause for cause in IDLE_CAUSES if _share(timeline, cause) >= _SMALLEST_SHARE]
    pipelines = ("pipeline",) if any(lane.pipeline_replicas > 1 for lane in timeline.lanes) else ()
    columns = ("unit", *pipelines, "stage", "devices", "busy", "memory", *causes)
    table = report_table("Stages; shares of the simulated step", *columns, texts=_TEXT_COLUMNS)
    for lane in timeline.lanes:
        idle = timeline.lane_idle(lane)
        table.add_row(
            lane.rank[0],
            *(str(lane.pipeline_replica) for _ in pipelines),
            str(lane.stage),
            f"{len(lane.devices):,}",
            f"{timeline.lane_busy(lane) / timeline.step:.1%}",
            _bytes(timeline.lane_peak_memory(lane)),
            *(f"{idle.get(cause, 0.0) / timeline.step:.1%}" for cause in causes),
        )
    print_table(table, console, keys=2 + len(pipelines))
    for filled in timeline.filled_idle:
        _print_filled(filled, timeline, console)
    for lane in timeline.lanes:
        for where, needed, room in (
            ("device", timeline.lane_peak_memory(lane), problem.cluster.usable_memory),
            ("device's host", timeline.lane_peak_host_memory(lane), problem.cluster.host_memory),
        ):
            if needed > room:
                console.print(
                    f"{lane.name} does not fit: it needs {_bytes(needed)} of the {_bytes(room)} of a "
                    f"{where}, {_bytes(needed - room)} too many",
                    soft_wrap=True,
                )


def _print_filled(filled: FilledIdle, timeline: Timeline, console: Console) -> None:
    """Prints how much of a unit's idle time the units on its devices fill."""
    table = report_table(filled_title(filled), "cause", "share of the step", "filled")
    for cause, idle in filled.idle.items():
        if idle / timeline.step >= _SMALLEST_SHARE:
            table.add_row(cause, f"{idle / timeline.step:.1%}", f"{filled.filled[cause] / idle:.1%}")
    table.add_row("all", f"{sum(filled.idle.values()) / timeline.step:.1%}", f"{filled.filled_share:.1%}")
    print_table(table, console)
    if said := efficiency_in_words(filled):
        console.print(said, soft_wrap=True)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def _bytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
