"""The baselines based on Megatron-LM: one chain of all modules with one dp, tp and pp, without overlapped collectives.

Each layer recomputes the least with which its rank fits (`sharding.planners.stages.recomputation`); the paper does not
say how its baselines recompute. Readings of "we place multimodal encoders in the pre-process in the first pipeline
stage" (section 5.1), where table 11 gives no virtual stages:

- `first_stage`: encoders beside an equal share of the backbone's layers, 1F1B.
- `rebalanced`: the same, but the backbone's layers are divided so that the slowest stage is as fast as possible.
- `first_stage` with virtual stages: as many of the backbone as "Megatron-LM balanced" has, encoders in the first.

"Megatron-LM balanced" divides all layers over its virtual stages (`balanced`). Many partitions are equal by its
recurrence, as a layer of GPT-175B takes as long as several of the encoder, but their steps are not; the paper does not
say which is taken.
"""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from benchmarks.colocated.settings import MegatronRanks
from sharding.costs.cost_model import useful_flops
from sharding.planners.chain_problem import ChainProblem
from sharding.planners.problem import PlanningProblem
from sharding.planners.simulated_plan import SimulatedPlan
from sharding.planners.stages.chain_layout import ChainLayout
from sharding.planners.stages.chain_stages import recomputed_stages
from sharding.planners.stages.exact_partition import partition_by
from sharding.plans.parallelism import CollectivesName
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.trained_parts import RequiredGradients
from sharding.specs.modules import ModuleGraph

ChainPartition = Callable[[PlanningProblem, int], tuple[int, ...]]
"""How many layers of the chain each of so many virtual stages owns."""


def first_stage(problem: PlanningProblem, stages: int) -> tuple[int, ...]:
    """All layers of the encoders, and as many of the backbone as each other stage has, the first ones one more."""
    least, rest = divmod(problem.graph.backbone.layer_count, stages)
    counts = [least + (stage < rest) for stage in range(stages)]
    return counts[0] + _encoder_layers(problem), *counts[1:]


def rebalanced(problem: PlanningProblem, stages: int) -> tuple[int, ...]:
    """All layers of the encoders, and as many of the backbone as make the slowest stage the fastest, by FLOPs."""
    layers, flops = _encoder_layers(problem), layer_flops(problem)
    counts = partition_by(np.append(flops[:layers].sum(), flops[layers:]), stages)
    if counts is None:
        raise PlanError(f"{problem.graph.backbone.name} has fewer layers than the {stages} stages; use fewer")
    return (counts[0] - 1 + layers, *counts[1:])


def balanced(problem: PlanningProblem, stages: int) -> tuple[int, ...]:
    """The slowest virtual stage is the fastest of all partitions, by FLOPs; of equal ones the first own the fewest.

        F(l, m) = min_j max(F(j, m - 1), t_(j+1) + ... + t_l)    (appendix B)

    Raises:
        PlanError: There are several encoders, which are no chain; or fewer layers than stages.
    """
    return _balanced(problem, stages, 1)


def balanced_from_first(problem: PlanningProblem, stages: int) -> tuple[int, ...]:
    """The same, but of equal partitions the last stages own the fewest."""
    return _balanced(problem, stages, -1)


def _balanced(problem: PlanningProblem, stages: int, direction: int) -> tuple[int, ...]:
    encoders = len(problem.graph.modules) - 1
    if encoders > 1:
        raise PlanError(f"Megatron-LM balanced divides a chain, but {encoders} encoders are side by side; give it one")
    flops = layer_flops(problem)
    counts = partition_by(flops[::direction], stages)
    if counts is None:
        raise PlanError(f"the {len(flops)} layers are fewer than the {stages} virtual stages; use fewer")
    return counts[::direction]


def layer_flops(problem: PlanningProblem) -> Float[np.ndarray, " n"]:
    """FLOPs of forward and backward of every layer for a mean row, module by module.

    What precedes a module's stack belongs to its first layer, what follows it to its last.
    """
    required, flops = RequiredGradients(problem.graph, problem.trained_parts), []
    for module in problem.graph.modules:
        load = problem.data.mean_load(module.name)
        for layer in range(module.layer_count):
            layers = required.of_layers(module.name, layer, layer + 1)
            flops.append(sum(run.count * float(useful_flops(run.layer, load, run.gradients)) for run in layers))
    return np.array(flops)


def simulate_chain(
    problem: PlanningProblem,
    ranks: MegatronRanks,
    partition: ChainPartition,
    collectives: CollectivesName = "sequence_parallel",
) -> SimulatedPlan:
    """The step of a chain; several encoders count as if each fed the next.

    Args:
        problem: The problem; each replica takes one row of it in a microbatch.
        ranks: The layout.
        partition: The stages.
        collectives: As in `UnitPlan`.

    Raises:
        PlanError: A stage does not fit under any recomputation.
    """
    layout = ChainLayout(
        modules=problem.graph.names,
        pp=ranks.pp,
        dp=ranks.dp,
        tp=ranks.tp,
        chunks=ranks.chunks,
        collectives=collectives,
        microbatches=problem.rows // ranks.dp,
    )
    counts = partition(problem, layout.stage_count)
    problem = _as_chain(problem)
    chain = ChainProblem(problem).layers(layout, extra_microbatches=0)
    stages = recomputed_stages(chain, layout, counts, problem.cluster.usable_memory)
    if stages is None:
        raise PlanError(
            f"{' > '.join(layout.modules)} with dp {ranks.dp}, pp {ranks.pp}, tp {ranks.tp} and {ranks.chunks} chunks "
            f"does not fit {problem.cluster.name} under any recomputation; use more pipeline ranks"
        )
    plan = stages.plan(chain, layout)
    return SimulatedPlan(plan, problem.simulate(plan))


def _encoder_layers(problem: PlanningProblem) -> int:
    return sum(module.layer_count for module in problem.graph.modules if not module.is_backbone)


def _as_chain(problem: PlanningProblem) -> PlanningProblem:
    """The problem with every module fed by the one before it."""
    first, *others = problem.graph.modules
    chained = [
        dataclasses.replace(module, inputs=(before.name,)) for before, module in itertools.pairwise((first, *others))
    ]
    return dataclasses.replace(problem, graph=ModuleGraph((first, *chained)))
