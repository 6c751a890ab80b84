"""The simulated step of fully sharded modules on the same devices, for given loads of every replica and module.

Every module is a unit of one stage, and its replicas are all devices. Layers gather their weights within a hybrid
group, so the replicas of a group compute a phase as slowly as the slowest of them; with an exchange between the phases
all replicas do.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from benchmarks.dispatch.arrangement import Arrangement, Balancing, all_replica_loads
from benchmarks.dispatch.least_recompute import LayerPolicies, SimulatedMemory, least_recompute
from benchmarks.dispatch.samples import StepSamples
from benchmarks.dispatch.settings import GROUP
from benchmarks.dispatch.traffic import all_to_all_seconds
from configs.clusters import CLUSTERS
from configs.workloads import SyntheticData, Workload
from mmjax.planning.problem import make_problem
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import LoadsByModule
from sharding.costs.cost_model import masked_flops, useful_flops
from sharding.costs.step_costs import StageCosts, StepCosts
from sharding.planners.layouts.placement import make_unit
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.resolved.trained_parts import RequiredGradients
from sharding.schedules.named.build import build_schedule
from sharding.simulation.simulator import simulate
from sharding.specs.layers.layer import RecomputePolicy
from sharding.specs.row_load_statistics import RowLoadStatistics

CLUSTER = CLUSTERS["h100"]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """A simulated step.

    Attributes:
        seconds: Seconds of the step, exchanges included.
        exchange: Seconds of the exchanges.
        memory: Share of a device's memory; above 1 it does not fit.
        plan: The plan.
        flops: FLOPs that the samples need, without padding and recomputation.
        masked: FLOPs of the other half of causal attention's squares.
        tokens: Tokens of the backbone.
    """

    seconds: float
    exchange: float
    memory: float
    plan: Plan
    flops: float
    masked: float
    tokens: float

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation; of causal attention, half of the squares counts."""
        return self.flops / self._possible_flops

    @property
    def mfu_whole_squares(self) -> float:
        """Model FLOPs utilisation where all squares of causal attention count."""
        return (self.flops + self.masked) / self._possible_flops

    @property
    def tokens_per_device(self) -> float:
        """Backbone tokens a second and device."""
        return self.tokens / self.seconds / self.plan.device_count

    @property
    def _possible_flops(self) -> float:
        return self.seconds * self.plan.device_count * CLUSTER.peak_flops


def problem_of(samples: StepSamples, data: SyntheticData, rows: LoadsByModule, devices: int) -> PlanningProblem:
    """The problem of a step whose global batch has these rows."""
    count = len(rows[samples.model.backbone.name])
    return make_problem(Workload(samples.model, data, count), RowLoadStatistics(rows), CLUSTER, devices)


def simulate_balanced(
    samples: StepSamples,
    data: SyntheticData,
    balancing: Balancing,
    arrangement: Arrangement,
    *,
    exchange_seconds: float | None = None,
    waits_for: int | None = None,
    choices: Sequence[RecomputePolicy] = ("none", "selective", "full"),
) -> Step:
    """The step with the least recomputation that fits, or with the most if none does.

    Args:
        samples: The samples.
        data: Their description.
        balancing: How they are balanced.
        arrangement: Where they are computed.
        exchange_seconds: Seconds of the exchanges; by default, of all-to-alls.
        waits_for: Consecutive replicas that compute each phase as slowly as the slowest; by default a hybrid group, or
            all replicas where there are exchanges.
        choices: Recomputation policies to choose from, from the least to the most.
    """
    loads = all_replica_loads(samples, arrangement, balancing.padded)
    problem = problem_of(samples, data, loads, samples.replicas)
    assert isinstance(problem.costs, AnalyticCostModel)
    if exchange_seconds is None:
        exchange_seconds = all_to_all_seconds(arrangement.exchanges, samples.replicas, problem.costs)
    group = min(GROUP, samples.replicas)
    waits_for = waits_for or (samples.replicas if balancing.exchanges else group)
    run = functools.partial(_simulate, problem, group, waits_for)
    plans = least_recompute(choices, run)
    best = min(plans.fitting, key=lambda plan: plan.step, default=plans.nearest)
    flops, masked = _needed_flops(problem, samples)
    return Step(
        seconds=best.step + exchange_seconds,
        exchange=exchange_seconds,
        memory=best.memory,
        plan=best.plan,
        flops=flops,
        masked=masked,
        tokens=float(samples.tokens(samples.model.backbone.name).sum()),
    )


def _simulate(problem: PlanningProblem, group: int, waits_for: int, policies: LayerPolicies) -> SimulatedMemory:
    """A step without its exchanges."""
    units = [
        make_unit((module.name,), dp=problem.devices, tp=1, layers=(module.layer_count,), recompute=policies.recompute)
        for module in problem.graph.modules
    ]
    recompute = [(policies.of_stage(module.layer_count),) for module in problem.graph.modules]
    plan = Plan(
        tuple(
            dataclasses.replace(unit, recompute=policy, parallelism=dataclasses.replace(unit.parallelism, fsdp=group))
            for unit, policy in zip(units, recompute, strict=True)
        ),
        1,
    )
    costs = _waiting_costs(problem.step_costs(plan, problem.data.loads), waits_for)
    resolved = problem.resolve(plan)
    timeline = simulate(resolved, build_schedule(resolved, resolved.trained_stages), costs)
    return SimulatedMemory(plan, timeline.step, problem.memory_fraction(timeline))


def _waiting_costs(costs: StepCosts, waits_for: int) -> StepCosts:
    """The costs where replicas wait for the slowest of so many in every phase, and without hops."""
    no_hops = {edge: np.zeros_like(seconds) for edge, seconds in costs.hops.items()}
    return dataclasses.replace(
        costs,
        stages={stage: _waiting_stage(stage_costs, waits_for) for stage, stage_costs in costs.stages.items()},
        hops=no_hops,
        gradient_hops={edge: no_hops[edge] for edge in costs.gradient_hops},
    )


def _waiting_stage(costs: StageCosts, waits_for: int) -> StageCosts:
    waited = {}
    for name in ("forward", "backward"):
        seconds = getattr(costs, name)
        waited[name] = _slowest(seconds, waits_for)
        waited[f"{name}_communication"] = getattr(costs, f"{name}_communication") + waited[name] - seconds
    return dataclasses.replace(costs, **waited)


def _slowest(seconds: Float[np.ndarray, "m i"], count: int) -> Float[np.ndarray, "m i"]:
    """The largest of every `count` consecutive replicas."""
    return np.repeat(seconds.reshape(len(seconds), -1, count).max(axis=2), count, axis=1)


def _needed_flops(problem: PlanningProblem, samples: StepSamples) -> tuple[float, float]:
    """FLOPs of the samples without padding, and what they leave out of causal attention's squares."""
    required, flops, masked = RequiredGradients(problem.graph, problem.trained_parts), 0.0, 0.0
    for module in problem.graph.modules:
        total = samples.loads[module.name].sum(axis=0)
        for layer, count, gradients in required.of_layers(module.name, 0, module.layer_count):
            flops += count * float(useful_flops(layer, total, gradients))
            masked += count * masked_flops(layer, total, gradients)
    return flops, masked
