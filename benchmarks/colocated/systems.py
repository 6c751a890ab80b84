"""The systems compared, each a function from a case to its simulated step.

Another one is a function more in `systems_of`.
"""

import functools
from collections.abc import Callable, Iterable, Mapping

from benchmarks.colocated import megatron
from benchmarks.colocated.alpa import simulate_alpa
from benchmarks.colocated.cases import OptimusCase
from benchmarks.colocated.settings import MICROBATCH
from sharding.planners.policies.auto import run_policy
from sharding.planners.problem import PlanningProblem
from sharding.planners.simulated_plan import SimulatedPlan
from sharding.plans.parallelism import CollectivesName
from sharding.plans.plan_error import PlanError

SimulateSystem = Callable[[OptimusCase], SimulatedPlan]
"""Raises PlanError where the system has no plan that fits."""

MEGATRON, MEGATRON_BALANCED, ALPA, FSDP = "Megatron-LM", "Megatron-LM balanced", "Alpa-like", "fsdp"
INTERLEAVED = f"{MEGATRON}, interleaved"
COLOCATED = "colocated"
BACKBONE = "backbone alone"

SAMPLES = (1, MICROBATCH)
"""Numbers of samples of a row, of which searched plans take the faster one."""


def systems_of(case: OptimusCase) -> Mapping[str, SimulateSystem]:
    """The systems of a case by name; the first is what the others are compared with."""
    searched = {policy: functools.partial(_by_policy, policy) for policy in ("disaggregated", FSDP)}
    searched = {COLOCATED: _colocated} | searched
    chain = {"balanced": functools.partial(_by_policy, "balanced")}
    if case.setting.ranks is None:
        return {ALPA: _alpa, **searched, **chain, BACKBONE: _searched_backbone}
    megatron_forms = {
        MEGATRON: functools.partial(_megatron, megatron.first_stage, 1),
        f"{MEGATRON}, first stage rebalanced": functools.partial(_megatron, megatron.rebalanced, 1),
    }
    if len(case.model.encoders) == 1:  # with several, the modules are no chain, and fit no first virtual stage
        megatron_forms[INTERLEAVED] = functools.partial(_megatron, megatron.first_stage, None)
        megatron_forms[MEGATRON_BALANCED] = functools.partial(_megatron_balanced, min)
        megatron_forms[f"{MEGATRON_BALANCED}, slower of equal partitions"] = functools.partial(_megatron_balanced, max)
        searched |= chain
    return {
        **megatron_forms,
        **searched,
        BACKBONE: functools.partial(_backbone, "sequence_parallel"),
        f"{BACKBONE}, collectives overlapped": functools.partial(_backbone, "ring"),
    }


def _megatron(partition: megatron.ChainPartition, chunks: int | None, case: OptimusCase) -> SimulatedPlan:
    """A chain of the setting's layout, with so many chunks, or the setting's."""
    ranks = case.setting.ranks
    assert ranks is not None
    return megatron.simulate_chain(case.problem, ranks._replace(chunks=chunks or ranks.chunks), partition)


def _megatron_balanced(choose: Callable[..., SimulatedPlan], case: OptimusCase) -> SimulatedPlan:
    """Simulates both ends of the equal partitions; takes the one with the shorter step (min) or the longer (max)."""
    partitions = (megatron.balanced, megatron.balanced_from_first)
    return choose((_megatron(partition, None, case) for partition in partitions), key=_seconds)


def _backbone(collectives: CollectivesName, case: OptimusCase) -> SimulatedPlan:
    """The backbone in the setting's layout, as if encoders took no time: colocated encoders are hidden behind it."""
    ranks = case.setting.ranks
    assert ranks is not None
    return megatron.simulate_chain(case.backbone_alone.problem, ranks, megatron.first_stage, collectives)


def _searched_backbone(case: OptimusCase) -> SimulatedPlan:
    """The backbone alone in the best layout of the policies that put all modules on the same devices."""
    return _shortest(_by_policy(policy, case.backbone_alone) for policy in ("balanced", FSDP))


def _alpa(case: OptimusCase) -> SimulatedPlan:
    return _shortest_of_samples(simulate_alpa, case)


def _by_policy(policy: str, case: OptimusCase) -> SimulatedPlan:
    def simulate(problem: PlanningProblem) -> SimulatedPlan:
        result = run_policy(problem, policy)
        if result.simulated is None:
            raise PlanError(result.reason)
        return result.simulated

    return _shortest_of_samples(simulate, case)


def _colocated(case: OptimusCase) -> SimulatedPlan:
    """Plans with rows of as many samples as the paper's microbatches; on few devices with either number."""
    if case.setting.ranks is None:
        return _by_policy(COLOCATED, case)
    result = run_policy(case.problem, COLOCATED)  # with rows of one sample, planning takes minutes
    if result.simulated is None:
        raise PlanError(result.reason)
    return result.simulated


def _shortest_of_samples(simulate: Callable[[PlanningProblem], SimulatedPlan], case: OptimusCase) -> SimulatedPlan:
    plans, reason = [], None
    for samples in SAMPLES:
        try:
            plans.append(simulate(case.problem_with(samples)))
        except PlanError as error:
            reason = error
    if not plans:
        assert reason is not None
        raise reason
    return _shortest(plans)


def _shortest(simulated: Iterable[SimulatedPlan]) -> SimulatedPlan:
    return min(simulated, key=_seconds)


def _seconds(simulated: SimulatedPlan) -> float:
    return simulated.timeline.step
