"""The results of planning policies as they come, and the line that shows how many there are and the best so far."""

from collections.abc import Callable

from sharding.html import numbers
from sharding.planners.policies.auto import LOCAL_SEARCH, PolicyResult
from sharding.planners.policies.policy_comparison import compared_policies

ShowCounts = Callable[[int, int | None, str], None]
"""Shows the number of policies that are compared, the number of all, and a remark (`ActivityDisplay.show`)."""


class ResultProgress:
    """Collects results while policies are compared, and shows each as it comes.

    Args:
        show: Shows the counts.
        policy: The policy that is compared, or `auto` for all.
    """

    def __init__(self, show: ShowCounts, policy: str) -> None:
        self._show, self._total = show, len(compared_policies(policy))
        self._results: dict[str, PolicyResult] = {}
        show(0, self._total, "")

    @property
    def results(self) -> list[PolicyResult]:
        """The latest result of every policy so far."""
        return list(self._results.values())

    def add(self, result: PolicyResult) -> None:
        """Takes a policy's result; the local search gives several, each better than the one before."""
        self._results[result.policy] = result
        done = len(self._results.keys() - {LOCAL_SEARCH})
        if done < self._total:  # of one policy alone, `finish` shows the end
            self._show(done, self._total, self._best_so_far())

    def finish(self) -> None:
        """Shows that all policies are compared."""
        self._show(self._total, self._total, "")

    def _best_so_far(self) -> str:
        with_plan = [result for result in self.results if result.simulated]
        if not with_plan:
            return ""
        best = min(with_plan, key=lambda result: result.timeline.step)
        return f"best so far: {best.policy}, {numbers.seconds(best.timeline.step)}"
