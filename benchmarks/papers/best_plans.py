"""The best plan of a problem by all policies, made once for each problem of a run."""

import math
import time
from typing import NamedTuple

from benchmarks.papers.paper_rows import ReportProgress
from sharding.html.numbers import count_of, seconds
from sharding.planners.policies.auto import PLANNING_POLICIES, PolicyResult, run_policy
from sharding.planners.policies.policy_comparison import PolicyComparison, compare_policies, comparison_of
from sharding.planners.problem import PlanningProblem
from sharding.planners.simulated_plan import SimulatedPlan


class BestPlan(NamedTuple):
    """The plan that `auto` chooses.

    Attributes:
        simulated: The plan and its step.
        words: It in words: its policy, and how many devices it takes.
    """

    simulated: SimulatedPlan
    words: str


class BestPlans:
    """Plans problems, each once, and says so before."""

    def __init__(self, report_progress: ReportProgress) -> None:
        """Takes where to report what is planned, and how long it took."""
        self._report_progress = report_progress
        self._compared: dict[tuple[PlanningProblem, bool], PolicyComparison] = {}

    def best(self, problem: PlanningProblem, title: str, *, search: bool = True) -> BestPlan:
        """The best plan of all policies.

        Args:
            problem: The problem.
            title: It in words, for progress.
            search: Whether to improve it by the local search, which takes most of the time.

        Raises:
            PlanError: No policy has a plan that fits.
        """
        if (problem, search) not in self._compared:
            self._compared[problem, search] = self._compare(problem, title, search)
        choice = self._compared[problem, search].choice
        assert choice.simulated is not None
        policy = f"{choice.start}, then local search" if choice.start else choice.policy
        without = "" if search else "; no local search"
        return BestPlan(choice.simulated, f"{policy}, {count_of(choice.plan.device_count, 'device')}{without}")

    def _compare(self, problem: PlanningProblem, title: str, search: bool) -> PolicyComparison:
        self._report_progress(f"planning {title}")
        begin = time.process_time()
        comparison = compare_policies(problem) if search else comparison_of(problem, _of_policies(problem))
        self._report_progress(f"planned {title} in {seconds(time.process_time() - begin)}")
        return comparison


def _of_policies(problem: PlanningProblem) -> list[PolicyResult]:
    """The result of every policy; where one's steps are far longer than the shortest so far, it ends its search."""
    results, shortest = [], math.inf
    for policy in PLANNING_POLICIES:
        results.append(run_policy(problem, policy, shortest))
        if results[-1].simulated:
            shortest = min(shortest, results[-1].timeline.step)
    return results
