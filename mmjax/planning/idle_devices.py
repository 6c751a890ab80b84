"""Why the chosen plan leaves devices idle, in a sentence: the time it would save, the rows, or the sizes of modules."""

from collections.abc import Sequence

from sharding.html import numbers
from sharding.planners.fuller_layouts import device_blocks, fuller_layouts, nearest_rows
from sharding.planners.policies.auto import PolicyResult, is_trainable
from sharding.planners.policies.policy_comparison import PolicyComparison
from sharding.planners.problem import STEP_SLACK
from sharding.plans.unit_plan import UnitPlan

MOST_DIFFERENT_ROWS = 0.15
"""Share of the rows of the global batch by which a suggested number of rows differs at most."""


def why_devices_idle(comparison: PolicyComparison) -> str:
    """Says how many devices the choice leaves idle, and why; empty if it uses all."""
    devices, used = comparison.problem.devices, comparison.plan.device_count
    if used == devices:
        return ""
    are = "is" if devices - used == 1 else "are"
    reason = _not_worth_it(comparison) or _rows_or_sizes(comparison)
    return f"{devices - used:,} of the {devices:,} devices {are} idle: {reason}."


def _not_worth_it(comparison: PolicyComparison) -> str:
    """Names the shortest plan of those on more devices that were as good as the choice but for their device-seconds."""
    problem, choice = comparison.problem, comparison.choice
    is_limited = is_trainable(problem, choice.plan)  # then only trainable plans were compared
    longest = choice.timeline.step * (1 + STEP_SLACK)
    larger: Sequence[PolicyResult] = [
        result
        for result in comparison.results
        if result.simulated
        and result.plan.device_count > choice.plan.device_count
        and result.timeline.step <= longest
        and (is_trainable(problem, result.plan) or not is_limited)
    ]
    if not larger:
        return ""
    best = min(larger, key=lambda result: result.timeline.step)
    return (
        f"{best.policy} takes {numbers.seconds(best.timeline.step)} on {best.plan.device_count:,}, within "
        f"{STEP_SLACK:.0%} of the choice, and more device-seconds"
    )


def _rows_or_sizes(comparison: PolicyComparison) -> str:
    """Says whether the rows or the sizes of the modules keep the choice's layout from more devices."""
    problem, plan = comparison.problem, comparison.plan
    backbone = problem.graph.backbone.name
    (unit,) = (unit for unit in plan.units if backbone in unit.modules)
    blocks = device_blocks(plan, backbone)
    rows_per_replica = max(1, problem.rows // (plan.microbatches * unit.replicas_of(backbone)))
    layouts = list(fuller_layouts(blocks, rows_per_replica, problem.devices))
    if not layouts:
        pace = " beside other modules that grow in proportion" if len(blocks) > 1 else ""
        return f"no further replica of {backbone} fits ({blocks[0].step:,} devices: {_sizes(unit)}){pace}"
    for layout in layouts:
        near = nearest_rows(problem.rows, layout.rows_multiple, MOST_DIFFERENT_ROWS)
        with_more = f"with {_sizes(unit)} and dp {layout.dp} of {backbone}, {layout.devices:,} could be used"
        if near == (problem.rows,):
            return (
                f"{with_more}, but no plan on more devices that was compared with it takes a step more than "
                f"{STEP_SLACK:.0%} shorter, and up to there the fewest device-seconds count"
            )
        if near:
            suggested = " or ".join(f"{count:,}" for count in near)
            return f"{with_more} for {suggested} rows, but not for {problem.rows:,}"
    return (
        f"with {_sizes(unit)}, more replicas of {backbone} would divide no number of rows within "
        f"{MOST_DIFFERENT_ROWS:.0%} of {problem.rows:,}"
    )


def _sizes(unit: UnitPlan) -> str:
    """The sizes of a unit that stay as they are."""
    sizes = {"tp": unit.parallelism.tp, "pp": unit.pp, "cp": unit.parallelism.cp}
    return ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1 or name != "cp")
