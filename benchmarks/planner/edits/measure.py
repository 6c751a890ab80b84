"""Edits of the plan that `auto` chooses for a problem, as a row of the benchmark."""

from typing import Any

from benchmarks.planner.edits.problems import PROBLEMS, edited_problem
from benchmarks.planner.edits.trials import EditTrials, try_edits
from sharding.planners.policies.auto import plan_automatically

GOAL = 0.005
"""Share by which an edit may shorten the step at most."""


def measure_edits(name: str, count: int) -> dict[str, Any]:
    """Plans a problem, and returns the row of `edits_row`; `count` valid edits are wanted."""
    problem = edited_problem(PROBLEMS[name])
    result = plan_automatically(problem)
    assert result.simulated is not None, result.reason
    return edits_row(name, result.policy, try_edits(problem, result.simulated, count))


def edits_row(name: str, policy: str, trials: EditTrials) -> dict[str, Any]:
    """The row of one problem.

    Its value is the share by which the best edit shortens the step, 0 if none does. Besides what every row has, it says
    which plan was edited, what came of the edits, and by field the largest share.
    """
    best = trials.best
    share = max(0.0, trials.shorter_by(best)) if best else 0.0
    shortens = best is not None and share > 0
    return {
        "name": name,
        "value": float(share),
        "goal": GOAL,
        "met": bool(share <= GOAL),
        "best": best.edit.words if best and shortens else "",
        "best_devices": best.plan.device_count if best and shortens else None,
        "best_more_device_seconds": float(trials.more_device_seconds(best)) if best and shortens else None,
        "policy": policy,
        "step_seconds": float(trials.chosen.timeline.step),
        "devices": trials.chosen.plan.device_count,
        "draws": trials.draws,
        "edits": len(trials.valid),
        "longer_by_bound": trials.bounded,
        "refused": dict(trials.refused),
        "refused_examples": trials.examples,
        "tried_fields": trials.tried_fields,
        "fields": {field: float(gain) for field, gain in trials.best_by_field.items()},
    }
