"""The reasons why a plan was chosen among the plans of several policies, in sentences; `report.py` prints them."""

from collections.abc import Sequence

from mmjax.planning.idle_devices import why_devices_idle
from sharding.planners.policies.auto import PolicyResult, is_trainable, why_untrainable
from sharding.planners.policies.policy_comparison import PolicyComparison
from sharding.planners.problem import STEP_SLACK
from sharding.simulation.idle.idle_time import IDLE_CAUSES
from sharding.simulation.pages.html_tables import range_in_words


def explain_choice(comparison: PolicyComparison) -> str:
    """Describes the choice: the next best plan, devices left idle, the distance from the bound, the most lost time."""
    choice = comparison.choice
    sentences = [*_compare_with_others(comparison), *_changes(comparison), *_ties(comparison)]
    if idle_devices := why_devices_idle(comparison):
        sentences.append(idle_devices)
    sentences.append(_distance_from_bound(comparison))
    idle = choice.timeline.idle
    largest = sorted(IDLE_CAUSES, key=lambda cause: -idle[cause])[:2]
    lost_time = " and ".join(f"{cause} ({idle[cause] / choice.timeline.step:.0%})" for cause in largest)
    sentences.append(f"Most time is lost to {lost_time}.")
    sentences += _occupied_ends(comparison)
    reason = why_untrainable(comparison.problem, choice.plan)
    if reason:
        sentences.append(f"It can be simulated, but not trained: {reason}.")
    return " ".join(sentences)


def _occupied_ends(comparison: PolicyComparison) -> list[str]:
    """Says what the step takes if hops occupy devices at both ends, if the plan was made without it and it matters."""
    problem, choice = comparison.problem, comparison.choice
    if problem.rendezvous:
        return []
    ratio = problem.simulate(choice.plan, rendezvous=True).step / choice.timeline.step
    if ratio <= 1 + STEP_SLACK:
        return []
    return [
        f"Between processes hops occupy the devices at both ends, and the step takes {ratio:.2f} times as long; "
        "--hops=rendezvous plans for that."
    ]


def _compare_with_others(comparison: PolicyComparison) -> list[str]:
    problem, choice = comparison.problem, comparison.choice
    step = choice.timeline.step
    others = [result for result in comparison.results if result.simulated and result is not choice]
    is_limited = is_trainable(problem, choice.plan)  # then only trainable plans were compared
    excluded = [result for result in others if is_limited and not is_trainable(problem, result.plan)]
    compared = [result for result in others if result not in excluded]
    reason = "the shortest simulated step"
    if any(result.timeline.step <= step * (1 + STEP_SLACK) for result in compared):
        reason = f"the fewest device-seconds among steps within {STEP_SLACK:.0%} of the shortest"
    if excluded:
        reason += " of the plans that can be trained"
    sentences = [f"Choice: {choice.policy}, {reason}."]
    if compared:
        best = _shortest(compared)
        sentences.append(f"The next best, {best.policy}, takes {_times_as_long(best, choice)}.")
    if excluded and (best := _shortest(excluded)).timeline.step < step:
        sentences.append(
            f"{best.policy} takes {_times_as_long(best, choice)}, but cannot be trained: "
            f"{why_untrainable(problem, best.plan)}."
        )
    return sentences


def _changes(comparison: PolicyComparison) -> list[str]:
    """Says which changes of which plan the choice is, if it was found by changes."""
    choice = comparison.choice
    if not choice.changes:
        return []
    return [f"It is the plan of {choice.start} with these changes: {'; '.join(choice.changes)}."]


def _ties(comparison: PolicyComparison) -> list[str]:
    """Says the range of the choice's step, and which plan published runs cannot tell from it."""
    chosen = comparison.timeline.step_range
    if chosen is None:
        return []
    sentences = [f"The step of the choice is expected to take {range_in_words(chosen)}."]
    if tied := tied_with_choice(comparison):
        sentences.append(
            f"The range of {tied.policy} overlaps it: a tie. Of a training configuration, --timed_plans=2 times the "
            "two best plans on its devices."
        )
    return sentences


def tied_with_choice(comparison: PolicyComparison) -> PolicyResult | None:
    """The best of the other plans whose range overlaps the choice's; None if published runs tell all from it."""
    chosen, other = comparison.timeline.step_range, best_other(comparison)
    overlaps = chosen and other and other.timeline.step_range and chosen.overlaps(other.timeline.step_range)
    return other if overlaps else None


def best_other(comparison: PolicyComparison) -> PolicyResult | None:
    """The policy with the shortest step of the plans that were compared with the choice; None without another plan."""
    problem, choice = comparison.problem, comparison.choice
    is_limited = is_trainable(problem, choice.plan)  # then only trainable plans were compared
    others = [
        result
        for result in comparison.results
        if result.simulated and result.plan != choice.plan and (is_trainable(problem, result.plan) or not is_limited)
    ]
    return _shortest(others) if others else None


def _shortest(results: Sequence[PolicyResult]) -> PolicyResult:
    return min(results, key=lambda result: result.timeline.step)


def _times_as_long(result: PolicyResult, choice: PolicyResult) -> str:
    ratio = result.timeline.step / choice.timeline.step
    return f"{ratio:.2f} times as long on {result.plan.device_count:,} devices, at {result.timeline.mfu:.1%} MFU"


def _distance_from_bound(comparison: PolicyComparison) -> str:
    above = comparison.timeline.step / comparison.bound - 1
    return (
        f"Its step is {above:.0%} above the bound, {comparison.bound:.3g} s, that no plan is shorter than: the work of "
        "all modules, divided evenly among all devices."
    )
