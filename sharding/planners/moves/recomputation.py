"""Changes of what layers recompute or offload: unit by unit, and stage by stage."""

import itertools
import math
from collections.abc import Iterator, Sequence

from sharding.planners.moves.change import Change, UnitChange, all_policies
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import RecomputePolicy

_SHARES = 8  # of the layers of a stage
_STAGES = 24  # stages of a unit that are changed one by one, at most


def recompute_changes(problem: PlanningProblem, plan: Plan) -> Iterator[Change]:
    """Two policies in all stages of a unit, by eighths of their layers; then layers of single stages, one or all."""
    for unit in plan.units:
        for first, rest in itertools.combinations(problem.searched_recompute, 2):
            for share in range(_SHARES + 1):
                policies = _mixed(unit, first, rest, share / _SHARES)
                yield _change(unit, policies, _mixture_words(first, rest, share / _SHARES))
    for unit in plan.units:
        if 1 < unit.stage_count <= _STAGES or (unit.stage_count == 1 and unit.layers[0] > 1):
            yield from _stage_changes(problem, unit)


def _mixture_words(first: RecomputePolicy, rest: RecomputePolicy, share: float) -> str:
    if share in (0, 1):
        return f"all layers {first if share else rest}"
    return f"{share:.0%} of each stage's layers {first}, others {rest}"


def _mixed(unit: UnitPlan, first: RecomputePolicy, rest: RecomputePolicy, share: float) -> tuple[RecomputePolicy, ...]:
    counts = [math.ceil(share * layers) for layers in unit.layers]
    policies: list[RecomputePolicy] = []
    for layers, count in zip(unit.layers, counts, strict=True):
        policies.extend(first for _ in range(count))
        policies.extend(rest for _ in range(layers - count))
    return tuple(policies)


def _stage_changes(problem: PlanningProblem, unit: UnitPlan) -> Iterator[Change]:
    """One layer of a stage, and all its layers of one policy, by each other policy."""
    policies, start = all_policies(unit), 0
    for stage, count in enumerate(unit.layers):
        own = policies[start : start + count]
        for old in dict.fromkeys(own):
            for new in problem.searched_recompute:
                if new == old:
                    continue
                every: tuple[RecomputePolicy, ...] = tuple(new if policy == old else policy for policy in own)
                last = len(own) - 1 - own[::-1].index(old)
                for changed, words in ((_replaced(own, last, new), "a layer"), (every, "layers")):
                    whole: tuple[RecomputePolicy, ...] = (
                        *policies[:start],
                        *changed,
                        *policies[start + count :],
                    )
                    yield _change(unit, whole, f"{words} of stage {stage} {old} -> {new}")
        start += count


def _replaced(policies: Sequence[RecomputePolicy], index: int, new: RecomputePolicy) -> tuple[RecomputePolicy, ...]:
    return (*policies[:index], new, *policies[index + 1 :])


def _change(unit: UnitPlan, policies: tuple[RecomputePolicy, ...], words: str) -> Change:
    return Change(f"{unit.name}: {words}", {unit.name: UnitChange(policies=policies)})
