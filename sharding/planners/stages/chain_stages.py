"""The stages of a chain with the recomputation of every layer, balanced together.

Without chunks the seconds of a stage are the fewest of any recomputation that fits it, so that the partition is the
best of all pairs of a partition and a recomputation: its slowest rank is as fast as possible. With chunks it is exact
for short chains, and for longer ones what a local search finds (`chunk_partition`).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from sharding.planners.stages.chain_layout import ChainLayout
from sharding.planners.stages.chunk_partition import ChunkPartitions
from sharding.planners.stages.exact_partition import best_partition_of_bounds, sums_between
from sharding.planners.stages.layer_chain import LayerChain, rank_sums, stage_sums
from sharding.planners.stages.microbatches_held import microbatches_held
from sharding.planners.stages.recomputation import HeldLayers, RecomputationSolver
from sharding.plans.plan import Plan
from sharding.specs.layers.layer import RecomputePolicy


@dataclasses.dataclass(frozen=True, eq=False)
class ChainStages:
    """A partition of a chain, and the policy of each layer.

    Attributes:
        counts: Layers of each virtual stage.
        policies: Number of each layer's policy in `LayerChain.policies`.
    """

    counts: tuple[int, ...]
    policies: Int[np.ndarray, " n"]

    def rank_seconds(self, chain: LayerChain, pp: int) -> Float[np.ndarray, " p"]:
        """Seconds of a mean microbatch's forward and backward on each pipeline rank."""
        seconds = np.take_along_axis(chain.seconds, self.policies[:, None], axis=1)[:, 0]
        return rank_sums(stage_sums(seconds, self.counts) + chain.stage_gathers(self.counts), pp)

    def hop_seconds(self, chain: LayerChain) -> Float[np.ndarray, " s-1"]:
        """Seconds of a mean microbatch's hop from each virtual stage to the next."""
        return chain.hop_seconds[np.cumsum(self.counts)[:-1] - 1]

    def plan(self, chain: LayerChain, layout: ChainLayout, extra_microbatches: int = 0) -> Plan:
        """The plan of these stages under a layout."""
        policies: list[RecomputePolicy] = [
            chain.policies[number] for number in np.repeat(self.policies, chain.layers).tolist()
        ]
        return layout.plan(chain.stage_layers(self.counts), policies, extra_microbatches)


def balanced_stages(
    chain: LayerChain, layout: ChainLayout, memory: float, extra_microbatches: int = 0
) -> ChainStages | None:
    """The stages and the recomputation with the fastest slowest rank, as the module says; None if nothing fits.

    With chunks, others of a long chain may be faster, or fit where None is returned.

    Args:
        chain: The layers.
        layout: Gives pp, chunks and microbatches.
        memory: Bytes of a device.
        extra_microbatches: As in `UnitPlan`.
    """
    held = microbatches_held(layout.pp, layout.chunks, layout.microbatches, extra_microbatches).tolist()
    solver = RecomputationSolver(chain, memory)
    if layout.chunks == 1:
        bounds = {most: solver.fastest_seconds(most) for most in set(held)}
        counts = best_partition_of_bounds(
            [bounds[most] for most in held],
            lambda stage, first, last: solver.least_seconds(HeldLayers(first, last, held[stage])),
        )
    else:
        counts = ChunkPartitions(chain, layout, memory, extra_microbatches).best()
    return _recomputed(solver, counts, held, layout.pp) if counts else None


def recomputed_stages(
    chain: LayerChain, layout: ChainLayout, counts: tuple[int, ...], memory: float, extra_microbatches: int = 0
) -> ChainStages | None:
    """The best recomputation for a given partition; None if it does not fit.

    Args:
        chain: The layers.
        layout: Gives pp, chunks and microbatches.
        counts: Layers of each virtual stage.
        memory: Bytes of a device.
        extra_microbatches: As in `UnitPlan`.
    """
    held = microbatches_held(layout.pp, layout.chunks, layout.microbatches, extra_microbatches).tolist()
    return _recomputed(RecomputationSolver(chain, memory), counts, held, layout.pp)


def least_peak_bytes(chain: LayerChain, layout: ChainLayout) -> float:
    """The fewest bytes that the fullest device needs, over all partitions and policies; infinite without a partition.

    Args:
        chain: The layers.
        layout: Gives pp and microbatches; it has no chunks.
    """
    held = microbatches_held(layout.pp, 1, layout.microbatches).tolist()
    solver = RecomputationSolver(chain, np.inf)

    def needed(stage: int, first: int, last: int) -> float:
        return solver.least_bytes(HeldLayers(first, last, held[stage]))

    bounds = {most: sums_between(solver.bytes_before(most).least) for most in set(held)}  # without workspace
    counts = best_partition_of_bounds([bounds[most] for most in held], needed)
    if counts is None:
        return np.inf
    ends = np.cumsum(counts).tolist()
    return max(needed(stage, end - counts[stage], end) for stage, end in enumerate(ends))


def rank_bytes(
    chain: LayerChain, layout: ChainLayout, stages: ChainStages, extra_microbatches: int = 0
) -> Float[np.ndarray, " p"]:
    """Bytes on a device of each pipeline rank at most.

    Args:
        chain: The layers.
        layout: Gives pp, chunks and microbatches.
        stages: The partition, and the policy of each layer.
        extra_microbatches: As in `UnitPlan`.
    """
    in_flight = microbatches_held(layout.pp, layout.chunks, layout.microbatches, extra_microbatches)
    held = np.concatenate([chain.bytes_held(int(most))[:, :, None] for most in in_flight], axis=2)
    layers, stage_numbers = np.arange(len(chain.forward)), np.repeat(np.arange(len(stages.counts)), stages.counts)
    starts = np.cumsum([0, *stages.counts[:-1]])
    workspace = np.maximum.reduceat(chain.workspace[layers, stages.policies], starts)
    layer_bytes = chain.static_bytes + held[layers, stages.policies, stage_numbers]
    return rank_sums(stage_sums(layer_bytes, stages.counts) + workspace, layout.pp)


def uniform_stages(chain: LayerChain, counts: tuple[int, ...], policy: RecomputePolicy) -> ChainStages:
    """A partition with one policy for all layers, whether it fits or not."""
    return ChainStages(counts, np.full(len(chain.forward), chain.policies.index(policy)))


def _recomputed(
    solver: RecomputationSolver, counts: tuple[int, ...], held: Sequence[int], pp: int
) -> ChainStages | None:
    ends = np.cumsum(counts).tolist()
    stages = [HeldLayers(end - count, end, most_held) for end, count, most_held in zip(ends, counts, held, strict=True)]
    policies = np.zeros(ends[-1], int)
    for rank in range(pp):
        choice = solver.choose(stages[rank::pp])
        if choice is None:
            return None
        owned = np.concatenate([np.arange(stage.first, stage.last) for stage in stages[rank::pp]])
        policies[owned] = choice.policies
    return ChainStages(counts, policies)
