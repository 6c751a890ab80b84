"""The line of compared policies: counts, the best plan so far, and what is left of a comparison that was stopped."""

from mmjax.planning.result_progress import ResultProgress
from sharding.planners.policies.auto import AUTO, LOCAL_SEARCH, PLANNING_POLICIES, PolicyResult, all_results
from sharding.planners.policies.policy_comparison import comparison_of
from sharding.planners.problem import STEP_SLACK
from tests.sharding.planners.problems import problem


def test_every_policy_counts_once_and_the_best_so_far_gets_shorter():
    case, shown, results = problem(devices=12, spread=0.6), [], []
    progress = ResultProgress(lambda *line: shown.append(line), AUTO)
    total = len(PLANNING_POLICIES) + 1
    assert shown == [(0, total, "")] and progress.results == []

    def add(result):
        progress.add(result)
        results.append(result)

    final = all_results(case, add)
    assert [line[0] for line in shown[1 : total + 1]] == [*range(1, total), total - 1]
    best = min((result for result in final if result.simulated), key=lambda result: result.timeline.step)
    assert shown[-1][2].startswith(f"best so far: {best.policy}, ")
    searched = [result for result in results if result.policy == LOCAL_SEARCH]
    assert len(searched) > 1  # its better plans, before its result
    assert progress.results == final
    progress.finish()
    assert shown[-1] == (total, total, "")


def test_a_comparison_that_was_stopped_has_the_best_plan_so_far():
    case = problem(devices=12, spread=0.6)
    progress = ResultProgress(lambda *line: None, AUTO)

    def stop_where_changes_are_worth_their_devices(result: PolicyResult) -> None:
        progress.add(result)
        others = [other for other in progress.results if other.simulated and other.policy != LOCAL_SEARCH]
        shortest = min(other.timeline.step for other in others)
        if result.policy == LOCAL_SEARCH and result.timeline.step * (1 + STEP_SLACK) < shortest:
            raise KeyboardInterrupt

    try:
        all_results(case, stop_where_changes_are_worth_their_devices)
    except KeyboardInterrupt:
        stopped = comparison_of(case, progress.results, stopped=True)
    assert stopped.choice.policy == LOCAL_SEARCH and stopped.choice.changes
    assert stopped.timeline.step == min(result.timeline.step for result in stopped.results if result.simulated)
