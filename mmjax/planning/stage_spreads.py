"""The imbalance of the pipeline ranks of a chain's plan, beside the imbalance of simpler partitions.

`report.py` prints it for plans of one chain.
"""

from typing import NamedTuple

import numpy as np

from sharding.planners.problem import PlanningProblem
from sharding.planners.stages.chain_costs import layer_chain
from sharding.planners.stages.chain_layout import ChainLayout
from sharding.planners.stages.chain_stages import ChainStages, recomputed_stages
from sharding.planners.stages.layer_chain import LayerChain, spread
from sharding.planners.stages.microbatches_held import microbatches_held
from sharding.planners.stages.partition_baselines import PARTITION_METHODS
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import RecomputePolicy


class StageSpreads(NamedTuple):
    """Seconds of the slowest pipeline rank divided by the mean over the ranks; 1 where all take the same.

    Attributes:
        chosen: Spread of the plan.
        others: Spreads of partitions by layers, parameters, forwards and over virtual stages, each with its best
            recomputation among the problem's and the plan's policies; partitions that do not fit are left out.
    """

    chosen: float
    others: dict[str, float]


def stage_spreads(problem: PlanningProblem, plan: Plan) -> StageSpreads | None:
    """Computes the spreads of a plan that has all modules as one chain on several pipeline ranks; None for another."""
    (unit, *rest) = plan.units
    if rest or unit.pp == 1:
        return None
    layout = _layout(unit, plan.microbatches)
    held = microbatches_held(
        unit.pp, unit.parallelism.chunks, plan.microbatches, unit.schedule_hints.extra_microbatches
    )
    chain = layer_chain(
        problem.sampled_costs, problem.trained_parts, layout, _policies(problem, unit), most_in_flight=int(held.max())
    )
    others = {}
    for name, method in PARTITION_METHODS.items():
        counts = method(chain, layout.stage_count)
        stages = recomputed_stages(chain, layout, counts, problem.cluster.usable_memory) if counts else None
        if stages:
            others[name] = spread(stages.rank_seconds(chain, layout.pp))
    return StageSpreads(spread(_stages_of(unit, chain).rank_seconds(chain, layout.pp)), others)


def _policies(problem: PlanningProblem, unit: UnitPlan) -> tuple[RecomputePolicy, ...]:
    """Returns the recomputation policies of the problem, and of a unit, whose planner may have had others."""
    policies = list(problem.recompute_choices)
    for stage in range(unit.stage_count):
        policies += unit.layer_recompute(stage)
    return tuple(dict.fromkeys(policies))


def _layout(unit: UnitPlan, microbatches: int) -> ChainLayout:
    return ChainLayout(
        modules=unit.modules,
        pp=unit.pp,
        dp=unit.parallelism.dp,
        tp=unit.parallelism.tp,
        module_tp=unit.parallelism.module_tp,
        chunks=unit.parallelism.chunks,
        cp=unit.parallelism.cp,
        ep=unit.parallelism.ep,
        collectives=unit.parallelism.collectives,
        microbatches=microbatches,
    )


def _stages_of(unit: UnitPlan, chain: LayerChain) -> ChainStages:
    """Returns the stages of a unit by layers of its chain, where a module that is not cut counts as one layer."""
    ends = np.cumsum(chain.layers)
    counts = np.diff(np.searchsorted(ends, np.cumsum(unit.layers)) + 1, prepend=0).tolist()
    policies = [policy for stage in range(unit.stage_count) for policy in unit.layer_recompute(stage)]
    return ChainStages(tuple(counts), np.array([chain.policies.index(policies[end - 1]) for end in ends]))
