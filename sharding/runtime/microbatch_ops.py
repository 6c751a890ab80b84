"""The ops of microbatches: forwards, backwards, wgrads and hops.

They use the programs of the pipeline replica that takes a microbatch, and among these the programs for the capacity
that it needs.

A microbatch without an item of a unit with rows of its own runs nothing there, and nothing is sent to the unit or from
it. The stages beside it take zeros instead, which is what an exchange without items brings. Which microbatches these
are is the same on all processes. The executor calls the methods of `MicrobatchOps` in the order of the schedule.
"""

import functools
from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.plans.resolved.stage_graph import StageGraph, StageId, StageReplica
from sharding.runtime.exchange.exchange_hop import ExchangeHop, PlacedTables
from sharding.runtime.hops import Hop, PermuteHop
from sharding.runtime.pipeline import Channel, ExecutableStage, PlacedBatch, ReplicaPrograms
from sharding.runtime.stages.compilation import ProgramCall
from sharding.runtime.stages.definition import BackwardResult, ForwardResult
from sharding.runtime.stages.programs import StagePrograms
from sharding.runtime.stages.split_backward import DgradResult, MicrobatchArrays
from sharding.runtime.step_buffers import OpCall, StageEvaluation, StepBuffers
from sharding.schedules.ops import PipelineOp
from sharding.trees import Tree


class MicrobatchOps:
    """One method for each kind of op of a microbatch.

    The methods of a forward, a backward and a wgrad return the call of its program, or None if there is nothing to do;
    the methods of hops return the arrays that arrived.

    Args:
        stages: All stages.
        channels: All activations between them.
        graph: Which pipeline replica takes which microbatch.

    Attributes:
        channels_between: By (source, target), the channels between two stages, of all pipeline replicas and capacities.
    """

    def __init__(
        self, stages: Mapping[StageId, ExecutableStage], channels: tuple[Channel, ...], graph: StageGraph
    ) -> None:
        self._stages, self._graph = stages, graph
        self.channels_between: dict[tuple[StageId, StageId], list[Channel]] = {}
        for channel in channels:
            self.channels_between.setdefault((channel.source, channel.target), []).append(channel)
        self._indices: dict[tuple[StageReplica, int], jax.Array] = {}
        self._zeros: dict[tuple[NamedSharding, tuple[int, ...], np.dtype], jax.Array] = {}

    # ------------------------------------------------------------------ one method for each kind of op

    def forward(self, buffers: StepBuffers, op: PipelineOp) -> OpCall | None:
        """Computes the outputs of a stage and adds its losses to the sums of its pipeline replica."""
        stage_id, microbatch = op.stage_id, op.microbatch
        place, replica = self._replica(stage_id, microbatch)
        capacity = buffers.batch.capacity(microbatch, stage_id[0])
        if not replica.is_local:
            return None
        if place not in buffers.losses:
            buffers.losses[place] = replica.largest.zero_losses()
        if capacity is None:
            return None
        programs = _programs(replica, capacity)
        inputs = {name: buffers.inputs[name, microbatch] for name in programs.definition.input_channels}
        operands = (
            self._weights(buffers, place),
            inputs,
            buffers.batch.stages[place],
            self._index(stage_id, microbatch),
            buffers.losses[place],
        )
        store = functools.partial(_store_forward, buffers, op, place, programs)
        return OpCall(ProgramCall(programs.forward, operands), store)

    def evaluate(self, buffers: StepBuffers, op: PipelineOp) -> StageEvaluation:
        """Computes the outputs, losses and metrics of a stage."""
        stage_id, microbatch = op.stage_id, op.microbatch
        place, replica = self._replica(stage_id, microbatch)
        capacity = buffers.batch.capacity(microbatch, stage_id[0])
        if capacity is None:
            return StageEvaluation(replica.largest.zero_losses(), {})
        programs = _programs(replica, capacity)
        inputs = {name: buffers.inputs.pop((name, microbatch)) for name in programs.definition.input_channels}
        output = programs.evaluate(
            self._weights(buffers, place), inputs, buffers.batch.stages[place], self._index(stage_id, microbatch)
        )
        buffers.outputs |= {(name, microbatch): array for name, array in output.outputs.items()}
        return StageEvaluation(output.losses, output.auxiliary_metrics)

    def hop(self, buffers: StepBuffers, op: PipelineOp) -> list[jax.Array | None]:
        """Carries activations from a stage to the next."""
        source, target, microbatch = op.stage_id, op.target_id, op.microbatch
        capacity = buffers.batch.capacity(microbatch, source[0], target[0])
        sent = {}
        for channel in self.channels_at(source, target, microbatch, capacity):
            key = (channel.name, microbatch)
            array = buffers.outputs.pop(key, None)
            if capacity is not None:
                sent[key] = _carry(channel.activation_hop, array, buffers.batch.exchange(*key).activation_tables)
            elif buffers.batch.capacity(microbatch, target[0]) is not None:
                buffers.inputs[key] = self._zeros_at(target, microbatch, channel.name)
        buffers.inputs |= sent
        return list(sent.values())

    def backward(self, buffers: StepBuffers, op: PipelineOp) -> OpCall | None:
        """Computes the gradients of a stage's inputs, and adds the gradients of its parameters to the sums so far.

        Where the backward is split, it computes only the gradients of the inputs.
        """
        stage_id, microbatch = op.stage_id, op.microbatch
        place, replica = self._replica(stage_id, microbatch)
        capacity = buffers.batch.capacity(microbatch, stage_id[0])
        if not replica.is_local:
            return None
        if place not in buffers.unreduced_gradients:
            buffers.unreduced_gradients[place] = _programs(replica, -1).zero_gradients()
        if capacity is None:
            return None
        programs = _programs(replica, capacity)
        definition = programs.definition
        inputs = {name: buffers.inputs.pop((name, microbatch)) for name in definition.input_channels}
        output_gradients = {
            name: buffers.output_gradients.pop((name, microbatch)) for name in definition.output_channels
        }
        residuals = buffers.residuals.pop((stage_id, microbatch))
        weights, batch, index = (
            self._weights(buffers, place),
            buffers.batch.stages[place],
            self._index(stage_id, microbatch),
        )
        if programs.split_backward is not None:
            split, arrays = programs.split_backward, MicrobatchArrays(inputs, residuals, output_gradients)
            store = functools.partial(_store_dgrad, buffers, op, split.kept_arrays(arrays))
            return OpCall(ProgramCall(split.dgrad, (weights, batch, index, arrays)), store)
        assert programs.backward is not None
        operands = (
            weights,
            inputs,
            batch,
            index,
            residuals,
            output_gradients,
            buffers.unreduced_gradients[place],
        )
        return OpCall(ProgramCall(programs.backward, operands), functools.partial(_store_backward, buffers, op, place))

    def wgrad(self, buffers: StepBuffers, op: PipelineOp) -> OpCall | None:
        """Adds the gradients of a stage's parameters, where its backward is split, to the sums so far."""
        stage_id, microbatch = op.stage_id, op.microbatch
        place, replica = self._replica(stage_id, microbatch)
        capacity = buffers.batch.capacity(microbatch, stage_id[0])
        if not replica.is_local or capacity is None:
            return None
        split = _programs(replica, capacity).split_backward
        assert split is not None
        operands = (
            self._weights(buffers, place),
            buffers.batch.stages[place],
            self._index(stage_id, microbatch),
            *buffers.wgrad_operands.pop((stage_id, microbatch)),
            buffers.unreduced_gradients[place],
        )
        return OpCall(ProgramCall(split.wgrad, operands), functools.partial(_store_wgrad, buffers, place))

    def gradient_hop(self, buffers: StepBuffers, op: PipelineOp) -> list[jax.Array | None]:
        """Carries gradients from the stage that computed them to the one that waits for them, the op's target."""
        source, target, microbatch = op.target_id, op.stage_id, op.microbatch
        capacity = buffers.batch.capacity(microbatch, source[0], target[0])
        sent = {}
        for channel in self.channels_at(source, target, microbatch, capacity):
            key = (channel.name, microbatch)
            array = buffers.input_gradients.pop(key, None)
            if capacity is not None:
                sent[key] = _carry(channel.gradient_hop, array, buffers.batch.exchange(*key).gradient_tables)
            elif buffers.batch.capacity(microbatch, source[0]) is not None:
                buffers.output_gradients[key] = self._zeros_at(source, microbatch, channel.name)
        buffers.output_gradients |= sent
        return list(sent.values())

    def arrived(self, batch: PlacedBatch, op: PipelineOp) -> jax.Array | None:
        """A small array that is ready when a hop in which devices meet is finished; None of other ops."""
        if op.kind not in ("hop", "gradient_hop"):
            return None
        source, target = (op.stage_id, op.target_id) if op.kind == "hop" else (op.target_id, op.stage_id)
        capacity = batch.capacity(op.microbatch, source[0], target[0])
        if capacity is None:
            return None
        channel = self.channels_at(source, target, op.microbatch, capacity)[-1]
        hop = channel.activation_hop if op.kind == "hop" else channel.gradient_hop
        return hop.arrived if isinstance(hop, PermuteHop | ExchangeHop) else None

    def channels_at(self, source: StageId, target: StageId, microbatch: int, capacity: int | None) -> list[Channel]:
        """The channels between the pipeline replicas of two stages that take a microbatch, each once.

        They are the channels for a capacity, or for any where nothing is sent.
        """
        sought = (
            self._graph.pipeline_replica_of_microbatch(source[0], microbatch),
            self._graph.pipeline_replica_of_microbatch(target[0], microbatch),
            capacity or 0,
        )
        return [
            channel
            for channel in self.channels_between[source, target]
            if (channel.source_replica, channel.target_replica, channel.capacity) == sought
        ]

    # ------------------------------------------------------------------ helpers

    def _replica(self, stage_id: StageId, microbatch: int) -> tuple[StageReplica, ReplicaPrograms]:
        """The pipeline replica of a stage that takes a microbatch, and its programs."""
        pipeline_replica = self._graph.pipeline_replica_of_microbatch(stage_id[0], microbatch)
        return (stage_id, pipeline_replica), self._stages[stage_id].pipeline_replicas[pipeline_replica]

    def _weights(self, buffers: StepBuffers, place: StageReplica) -> Tree:
        """The compute weights of a stage on the submesh of a pipeline replica."""
        stage_id, pipeline_replica = place
        if stage_id not in buffers.pipeline_replica_weights:
            buffers.pipeline_replica_weights[stage_id] = self._stages[stage_id].meshes.split(
                buffers.compute_weights[stage_id]
            )
        weights = buffers.pipeline_replica_weights[stage_id][pipeline_replica]
        assert weights is not None  # the op runs here
        return weights

    def _zeros_at(self, stage_id: StageId, microbatch: int, channel: str) -> jax.Array | None:
        """The activations of a channel, or their gradients, on one of its stages, all zero.

        They are made once for each pipeline replica.
        """
        _, replica = self._replica(stage_id, microbatch)
        if not replica.is_local:
            return None
        shape, sharding = replica.largest.channel_shapes[channel], replica.largest.channel_shardings[channel]
        key = (sharding, shape.shape, np.dtype(shape.dtype))
        if key not in self._zeros:
            zeros = np.zeros(sharding.shard_shape(shape.shape), shape.dtype)
            self._zeros[key] = jax.make_array_from_callback(shape.shape, sharding, lambda _: zeros, dtype=shape.dtype)
        return self._zeros[key]

    def _index(self, stage_id: StageId, microbatch: int) -> jax.Array:
        """The position of a microbatch among the microbatches of its pipeline replica, on its submesh, made once."""
        place, replica = self._replica(stage_id, microbatch)
        position = self._graph.position_at(stage_id[0], microbatch)
        key = (place, position)
        if key not in self._indices:
            sharding = NamedSharding(replica.largest.mesh, P())
            self._indices[key] = jax.make_array_from_callback((), sharding, lambda _: np.int32(position))
        return self._indices[key]


def _programs(replica: ReplicaPrograms, capacity: int) -> StagePrograms:
    """The programs of a stage for a capacity by number; -1 for the largest."""
    programs = replica.by_capacity[capacity]
    assert isinstance(programs, StagePrograms), "a unit that is one program has ops of its own (`PipelineOps`)"
    return programs


def _carry(hop: Hop | ExchangeHop, array: jax.Array | None, tables: PlacedTables | None) -> jax.Array | None:
    """The array at the other end of a hop; only an exchange needs tables."""
    return hop(array, tables) if isinstance(hop, ExchangeHop) else hop(array)


def _store_forward(
    buffers: StepBuffers, op: PipelineOp, place: StageReplica, programs: StagePrograms, result: ForwardResult
) -> ForwardResult:
    stage_id, microbatch = op.stage_id, op.microbatch
    buffers.losses[place] = result.losses
    buffers.outputs |= {(name, microbatch): array for name, array in result.outputs.items()}
    if not programs.has_backward:
        for name in programs.definition.input_channels:
            del buffers.inputs[name, microbatch]
    else:
        buffers.residuals[stage_id, microbatch] = result.residuals
    return result


def _store_backward(
    buffers: StepBuffers, op: PipelineOp, place: StageReplica, result: BackwardResult
) -> BackwardResult:
    buffers.unreduced_gradients[place] = result.parameter_gradients
    buffers.input_gradients |= {(name, op.microbatch): array for name, array in result.input_gradients.items()}
    return result


def _store_dgrad(buffers: StepBuffers, op: PipelineOp, kept: list, result: DgradResult) -> DgradResult:
    buffers.input_gradients |= {(name, op.microbatch): array for name, array in result.input_gradients.items()}
    buffers.wgrad_operands[op.stage_id, op.microbatch] = (kept, result.saved)
    return result


def _store_wgrad(buffers: StepBuffers, place: StageReplica, result: Tree) -> BackwardResult:
    buffers.unreduced_gradients[place] = result
    return BackwardResult({}, result)
