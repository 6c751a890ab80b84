"""What a choice between two plans hangs on: both are simulated again with one assumption changed at a time.

`mmjax.plan --assumptions` prints the result, a tornado table.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from configs.clusters import ClusterConfig, Link
from configs.cost_effects import EFFECT_NAMES, CostEffects
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import LoadsByModule
from sharding.costs.step_costs import StageCosts, StepCosts
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.specs.layers.layer import LoadColumn

SLOWDOWN = 1.1
"""How many times as long a slow replica of a stage computes."""


class Sensitivity(NamedTuple):
    """Two plans' steps under a changed assumption.

    Attributes:
        assumption: What is changed, in words.
        choice: Seconds of the chosen plan's step.
        other: Seconds of the other plan's step.
    """

    assumption: str
    choice: float
    other: float

    @property
    def turns(self) -> bool:
        """Whether the other plan is faster then."""
        return self.other < self.choice

    @property
    def ratio(self) -> float:
        """How many times as long as the choice's step the other's takes."""
        return self.other / self.choice

    def has_steps_of(self, other: "Sensitivity") -> bool:
        """Whether both steps are equal under two assumptions."""
        return math.isclose(self.choice, other.choice) and math.isclose(self.other, other.other)


def sensitivities(problem: PlanningProblem, choice: Plan, other: Plan) -> tuple[Sensitivity, ...]:
    """Simulates two plans under every changed assumption.

    Args:
        problem: The problem that both solve.
        choice: The chosen plan.
        other: The plan that it is compared with.
    """
    plans = (choice, other)
    slow = f"one replica of a backbone stage {SLOWDOWN - 1:.0%} slower"
    return (
        *(
            Sensitivity(words, *(changed.simulate(plan, rows=rows).step for plan in plans))
            for words, changed, rows in _changes(problem)
        ),
        Sensitivity(slow, *(_step_with_slow_replica(problem, plan) for plan in plans)),
    )


def _changes(problem: PlanningProblem) -> Iterator[tuple[str, PlanningProblem, LoadsByModule | None]]:
    """Every changed assumption: its words, the changed problem, and other rows where these change."""
    if isinstance(problem.costs, AnalyticCostModel):  # measured costs have no assumptions
        for words, cluster in _other_clusters(problem.costs.cluster):
            yield words, dataclasses.replace(problem, costs=dataclasses.replace(problem.costs, cluster=cluster)), None
    if problem.rendezvous:
        yield "hops occupy no device", dataclasses.replace(problem, hops="asynchronous"), None
    else:
        yield "hops occupy both ends", dataclasses.replace(problem, hops="rendezvous"), None
    yield "other rows of the data", dataclasses.replace(problem, seed=problem.seed + 1), None
    for words, factor in (("half as long", 0.5), ("twice as long", 2.0)):
        yield f"segments {words}", problem, _with_segments(problem, factor)


def _other_clusters(cluster: ClusterConfig) -> Iterator[tuple[str, ClusterConfig]]:
    """The devices with another effect on costs, or another network."""
    effects = cluster.generation.effects
    for name in EFFECT_NAMES:
        if effects.without((name,)) != effects:
            yield f"no {name}", cluster.without((name,))
            yield f"twice the {name}", _with_effects(cluster, effects.twice(name))
    for words, field in (("between nodes", "inter_node"), ("within nodes", "intra_node")):
        link: Link = getattr(cluster, field)
        for amount, factor in (("half", 0.5), ("twice", 2.0)):
            changed = dataclasses.replace(link, bandwidth=factor * link.bandwidth)
            yield f"{amount} the bandwidth {words}", dataclasses.replace(cluster, **{field: changed})


def _with_effects(cluster: ClusterConfig, effects: CostEffects) -> ClusterConfig:
    return dataclasses.replace(cluster, generation=dataclasses.replace(cluster.generation, effects=effects))


def _with_segments(problem: PlanningProblem, factor: float) -> LoadsByModule:
    """The rows, with segments of the backbone so many times as long, and as many fewer of them."""
    name = problem.graph.backbone.name
    loads = problem.sampled_rows[name].copy()
    loads[:, LoadColumn.SQUARED_LENGTHS] *= factor
    return {**problem.sampled_rows, name: loads}


def _step_with_slow_replica(problem: PlanningProblem, plan: Plan) -> float:
    """Seconds of a step in which one replica of the backbone's longest stage computes more slowly."""
    resolved, costs = problem.resolve(plan), problem.step_costs(plan)
    unit = plan.unit_of(problem.graph.backbone.name).name
    seconds = {stage: float(_work(of_stage).max()) for stage, of_stage in costs.stages.items() if stage[0] == unit}
    longest = max(seconds, key=seconds.__getitem__)
    slowed: StepCosts = dataclasses.replace(
        costs, stages={**costs.stages, longest: _with_slow_replica(costs.stages[longest])}
    )
    return problem.simulate_costs(resolved, slowed).step


def _with_slow_replica(costs: StageCosts) -> StageCosts:
    """The costs of a stage whose replica with the most work takes SLOWDOWN times as long."""
    factors = [1.0] * costs.forward.shape[1]
    factors[int(_work(costs).argmax())] = SLOWDOWN
    wgrad = costs.wgrad and dataclasses.replace(costs.wgrad, seconds=costs.wgrad.seconds * factors)
    return dataclasses.replace(costs, forward=costs.forward * factors, backward=costs.backward * factors, wgrad=wgrad)


def _work(costs: StageCosts) -> Float[np.ndarray, " i"]:
    """Seconds of all forwards and backwards on each replica."""
    return (costs.forward + costs.backward).sum(axis=0)
