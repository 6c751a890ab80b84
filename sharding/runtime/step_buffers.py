"""The arrays that are alive during one pass over a schedule, and the calls of ops that fill them.

The executor makes `StepBuffers` at the start of a pass; ops read and fill these arrays.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from sharding.plans.resolved.stage_graph import StageId, StageReplica
from sharding.runtime.global_reduction import StepSummary
from sharding.runtime.pipeline import PlacedBatch, TrainState
from sharding.runtime.stages.compilation import ProgramCall
from sharding.runtime.stages.definition import Arrays
from sharding.schedules.ops import OpKind
from sharding.trees import Tree

ChannelKey = tuple[str, int]
"""(channel, microbatch)."""

Activations = dict[ChannelKey, jax.Array | None]
"""Activations of channels, or their gradients; None where no process-local device has them."""


class StageEvaluation(NamedTuple):
    """A stage's results for one microbatch.

    Attributes:
        losses: `[replicas]` by name.
        auxiliary_metrics: Arrays by name, rows first; none of a microbatch that does not run there.
    """

    losses: Arrays
    auxiliary_metrics: Arrays


@dataclasses.dataclass(kw_only=True)
class StepBuffers:
    """All arrays that are alive during one pass over the schedule.

    Compute weights are on the mesh of all pipeline replicas of a stage; `pipeline_replica_weights` are views of them on
    each pipeline replica's submesh. `begun` has, by kind of op and stage, the microbatches whose inputs or output
    gradients have come, of units that are one program or two; `saved_state` what the forwards of such a unit leave for
    its backwards.
    """

    state: TrainState
    batch: PlacedBatch
    compute_weights: dict[StageId, Tree]
    pipeline_replica_weights: dict[StageId, tuple[Tree | None, ...]] = dataclasses.field(default_factory=dict)
    losses: dict[StageReplica, Arrays] = dataclasses.field(default_factory=dict)
    unreduced_gradients: dict[StageReplica, Tree] = dataclasses.field(default_factory=dict)
    gradients: dict[StageId, Tree] = dataclasses.field(default_factory=dict)
    outputs: Activations = dataclasses.field(default_factory=dict)
    inputs: Activations = dataclasses.field(default_factory=dict)
    output_gradients: Activations = dataclasses.field(default_factory=dict)
    input_gradients: Activations = dataclasses.field(default_factory=dict)
    residuals: dict[tuple[StageId, int], list[jax.Array]] = dataclasses.field(default_factory=dict)
    wgrad_operands: dict[tuple[StageId, int], tuple[list[Any], list[jax.Array]]] = dataclasses.field(
        default_factory=dict
    )
    saved_state: dict[StageId, list[jax.Array]] = dataclasses.field(default_factory=dict)
    begun: dict[tuple[OpKind, StageId], set[int]] = dataclasses.field(default_factory=dict)
    summary: StepSummary | None = None


class OpCall(NamedTuple):
    """An op that is ready to run: one program, alone or in a bundle.

    Attributes:
        call: The program and its arguments.
        store: Stores what the program returned where later ops find it; returns the arrays that the op made.
    """

    call: ProgramCall
    store: Callable[[Any], Any]

    def run(self) -> Any:
        """Runs the program alone, and returns the arrays that the op made."""
        return self.store(self.call.program(*self.call.arguments))
