"""What partitions near the exact one gain, by their simulated steps: the policy `balanced` with and without them."""

import time
from typing import Any

from benchmarks.planner.edits.problems import PROBLEMS, edited_problem
from sharding.planners.policies.balanced import exact_plans, plans
from sharding.planners.policies.best_plan import PlanningPolicy, best_simulated
from sharding.planners.problem import PlanningProblem

Row = dict[str, Any]


def measure_partitions(name: str) -> list[Row]:
    """The steps of the best plan of a problem with the exact partitions alone and with others, and their ratio."""
    size = PROBLEMS[name]
    exact, exact_seconds = _timed(edited_problem(size), exact_plans)
    near, near_seconds = _timed(edited_problem(size), plans)
    return [
        _row(f"{name}: exact partitions: seconds", exact),
        _row(f"{name}: with partitions near them: seconds", near),
        _row(f"{name}: over exact partitions", near / exact, 1.0),
        _row(f"{name}: more processor seconds of planning", near_seconds - exact_seconds),
    ]


def _timed(problem: PlanningProblem, policy: PlanningPolicy) -> tuple[float, float]:
    """The simulated step of a policy's best plan, and the processor seconds of planning."""
    start = time.process_time()
    step = best_simulated(problem, policy(problem)).timeline.step
    return step, time.process_time() - start


def _row(name: str, value: float, goal: float | None = None) -> Row:
    return {"name": name, "value": value, "goal": goal, "met": None if goal is None else value <= goal, "paper": None}
