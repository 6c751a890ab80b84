"""Runs a schedule: every op in order, as its stage's program on its submesh or as a hop between two stages.

Everything is dispatched asynchronously; no value is read on the host. Residuals and activations are dropped as soon as
the last op that needs them has been dispatched.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.plans.stage_graph import StageId
from sharding.runtime.exchange.hop import ExchangeHop, PlacedTables
from sharding.runtime.global_reduction import GlobalReduction, StepSummary
from sharding.runtime.hops import Hop, PermuteHop
from sharding.runtime.pipeline import Channel, ExecutableStage, PlacedBatch, TiedParameter, TrainState
from sharding.runtime.stage_programs import Arrays, BackwardResult, ForwardResult
from sharding.schedules.op_log import OpLog
from sharding.schedules.ops import PipelineOp, Schedule
from sharding.trees import Tree, get_leaf, set_leaf

ChannelKey = tuple[str, int]
"""(channel, microbatch)."""

OpCallback = Callable[[PipelineOp, Any], None]
"""Called after every op as `callback(op, outputs)`; `outputs` are the arrays that the op made, as what it returned them
in (`ForwardResult`, `BackwardResult`, `StepSummary`, a tree of arrays), to wait for when timing."""


_HOPS = ("hop", "hop_back")
_LOGGED_STEPS = 4
"""More than training has in flight."""


class StageEvaluation(NamedTuple):
    """A stage's results for one microbatch.

    Attributes:
        losses: `[replicas]` by name.
        auxiliary_metrics: Arrays by name, rows first.
    """

    losses: Arrays
    auxiliary_metrics: Arrays


@dataclasses.dataclass(kw_only=True)
class _StepBuffers:
    """All arrays that are alive during one pass over the schedule."""

    state: TrainState
    batch: PlacedBatch
    compute_weights: dict[StageId, Tree]
    losses: dict[StageId, Arrays] = dataclasses.field(default_factory=dict)
    gradients: dict[StageId, Tree] = dataclasses.field(default_factory=dict)
    outputs: dict[ChannelKey, jax.Array | None] = dataclasses.field(default_factory=dict)
    inputs: dict[ChannelKey, jax.Array | None] = dataclasses.field(default_factory=dict)
    output_gradients: dict[ChannelKey, jax.Array | None] = dataclasses.field(default_factory=dict)
    input_gradients: dict[ChannelKey, jax.Array | None] = dataclasses.field(default_factory=dict)
    residuals: dict[tuple[StageId, int], list[jax.Array]] = dataclasses.field(default_factory=dict)
    summary: StepSummary | None = None


class Executor:
    """Runs training and evaluation schedules over stages.

    Args:
        stages: In topological order.
        channels: All activations between stages.
        tied_parameters: All parameters that a stage borrows from another.
        global_reduction: Norm, clipping and finiteness, once a step.
        training_schedule, evaluation_schedule: Already restricted to this process's devices.

    Attributes:
        op_log: The ops of the last steps dispatched, which other threads may read.
    """

    def __init__(
        self,
        stages: Mapping[StageId, ExecutableStage],
        channels: tuple[Channel, ...],
        tied_parameters: tuple[TiedParameter, ...],
        global_reduction: GlobalReduction,
        training_schedule: Schedule,
        evaluation_schedule: Schedule,
    ) -> None:
        self.stages, self.channels, self.tied_parameters = stages, channels, tied_parameters
        self.global_reduction = global_reduction
        self.training_schedule, self.evaluation_schedule = training_schedule, evaluation_schedule
        self.op_log = OpLog(_LOGGED_STEPS * len(training_schedule.ops))
        self._channels_by_stage_pair: dict[tuple[StageId, StageId], list[Channel]] = {}
        for channel in channels:
            self._channels_by_stage_pair.setdefault((channel.source, channel.target), []).append(channel)
        self._indices: dict[tuple[StageId, int], jax.Array] = {}
        self._run_op: dict[str, Callable[[_StepBuffers, PipelineOp], Any]] = {
            "gather": self._gather,
            "share": self._share,
            "forward": self._forward,
            "hop": self._hop,
            "backward": self._backward,
            "hop_back": self._hop_back,
            "reduce": self._reduce,
            "share_back": self._share_back,
            "norm": self._norm,
            "update": self._update,
        }

    def step(
        self, state: TrainState, batch: PlacedBatch, callback: OpCallback | None = None
    ) -> tuple[TrainState, StepSummary]:
        """One training step. The buffers of the state are donated; the summary is not read here.

        Args:
            state: Master weights and optimizer state.
            batch: The global batch.
            callback: Called after every op, to time it.
        """
        buffers = _StepBuffers(state=state, batch=batch, compute_weights={})
        buffers = self._run_training_ops(buffers, frozenset(self._run_op), callback)
        assert buffers.summary is not None
        return buffers.state, buffers.summary

    def gradients(self, state: TrainState, batch: PlacedBatch) -> tuple[dict[StageId, Tree], StepSummary]:
        """Reduced gradients by stage, key and layer, and the losses, without an update; the state stays as it is."""
        buffers = _StepBuffers(state=state, batch=batch, compute_weights={})
        buffers = self._run_training_ops(buffers, frozenset(self._run_op) - {"update"})
        assert buffers.summary is not None
        return buffers.gradients, buffers.summary

    def update(self, state: TrainState, gradients: Mapping[StageId, Tree]) -> tuple[TrainState, StepSummary]:
        """The update of a step whose reduced gradients are given, clipped by their global norm; losses count as zero.

        The buffers of the state are donated.
        """
        losses = {stage_id: stage.programs.zero_losses() for stage_id, stage in self.stages.items() if stage.is_local}
        given = _StepBuffers(
            state=state, batch=PlacedBatch({}), compute_weights={}, losses=losses, gradients=dict(gradients)
        )
        buffers = self._run_training_ops(given, frozenset({"norm", "update"}))
        assert buffers.summary is not None
        return buffers.state, buffers.summary

    def compute_weights(self, state: TrainState) -> dict[StageId, Tree]:
        """The compute weights of all stages, for several evaluations of one state."""
        buffers = _StepBuffers(state=state, batch=PlacedBatch({}), compute_weights={})
        return self._run_training_ops(buffers, frozenset({"gather", "share"})).compute_weights

    def _run_training_ops(
        self, buffers: _StepBuffers, kinds: frozenset[str], callback: OpCallback | None = None
    ) -> _StepBuffers:
        """Runs the ops of some kinds in the order of the training schedule, on buffers whose state is copied first."""
        state = buffers.state
        buffers.state = TrainState(dict(state.master_weights), dict(state.optimizer_state), state.all_finite)
        for op in self.training_schedule.ops:
            if op.kind in kinds:
                self.op_log.begin(op)
                outputs = self._run_op[op.kind](buffers, op)
                self.op_log.end(op, self._mark(op, outputs))
                if callback:
                    callback(op, outputs)
        return buffers

    def evaluate(
        self, compute_weights: dict[StageId, Tree], batch: PlacedBatch
    ) -> dict[StageId, list[StageEvaluation]]:
        """Losses and auxiliary metrics of every stage and microbatch; forward only."""
        state = TrainState({}, {}, self.global_reduction.initial_flag())
        buffers = _StepBuffers(state=state, batch=batch, compute_weights=compute_weights)
        results: dict[StageId, list[StageEvaluation]] = {stage_id: [] for stage_id in self.stages}
        for op in self.evaluation_schedule.ops:
            self.op_log.begin(op)
            if op.kind == "hop":
                self._hop(buffers, op)
            elif op.kind == "forward":
                results[op.stage_id].append(self._evaluate(buffers, op))
            self.op_log.end(op, self._mark(op, None))
        return results

    # ------------------------------------------------------------------ one method for each kind of op: its outputs

    def _gather(self, buffers: _StepBuffers, op: PipelineOp) -> Tree | None:
        stage = self.stages[op.stage_id]
        if not stage.is_local:
            return None
        weights = buffers.compute_weights[op.stage_id] = stage.gather(buffers.state.master_weights[op.stage_id])
        return weights

    def _share(self, buffers: _StepBuffers, op: PipelineOp) -> list[jax.Array | None]:
        sent = []
        for tied in self._tied_between(op):
            weight = None
            if tied.owner in buffers.compute_weights:
                key, path = tied.owner_path
                weight = get_leaf(buffers.compute_weights[tied.owner][key], path)
            received = tied.weight_hop(weight)
            sent.append(received)
            if self.stages[tied.borrower].is_local:
                key, path = tied.borrower_path
                weights = buffers.compute_weights[tied.borrower]
                buffers.compute_weights[tied.borrower] = {**weights, key: set_leaf(weights[key], path, received)}
        return sent

    def _forward(self, buffers: _StepBuffers, op: PipelineOp) -> ForwardResult | None:
        stage_id, microbatch = op.stage_id, op.microbatch
        programs = self.stages[stage_id].programs
        if not self.stages[stage_id].is_local:
            buffers.outputs |= {(name, microbatch): None for name in programs.definition.output_channels}
            return None
        losses = buffers.losses[stage_id] if stage_id in buffers.losses else programs.zero_losses()
        inputs = {name: buffers.inputs[name, microbatch] for name in programs.definition.input_channels}
        result = programs.forward(
            buffers.compute_weights[stage_id],
            inputs,
            buffers.batch.stages[stage_id],
            self._index(stage_id, microbatch),
            losses,
        )
        buffers.losses[stage_id] = result.losses
        buffers.outputs |= {(name, microbatch): array for name, array in result.outputs.items()}
        if programs.backward is None:
            for name in programs.definition.input_channels:
                del buffers.inputs[name, microbatch]
        else:
            buffers.residuals[stage_id, microbatch] = result.residuals
        return result

    def _evaluate(self, buffers: _StepBuffers, op: PipelineOp) -> StageEvaluation:
        stage_id, microbatch = op.stage_id, op.microbatch
        programs = self.stages[stage_id].programs
        inputs = {name: buffers.inputs.pop((name, microbatch)) for name in programs.definition.input_channels}
        output = programs.evaluate(
            buffers.compute_weights[stage_id], inputs, buffers.batch.stages[stage_id], self._index(stage_id, microbatch)
        )
        buffers.outputs |= {(name, microbatch): array for name, array in output.outputs.items()}
        return StageEvaluation(output.losses, output.auxiliary_metrics)

    def _hop(self, buffers: _StepBuffers, op: PipelineOp) -> list[jax.Array | None]:
        channels = self._channels_by_stage_pair[op.stage_id, op.target_id]
        sent = {}
        for channel in channels:
            key = (channel.name, op.microbatch)
            tables = buffers.batch.exchange(*key).activation_tables
            sent[key] = _carry(channel.activation_hop, buffers.outputs.pop(key, None), tables)
        buffers.inputs |= sent
        return list(sent.values())

    def _backward(self, buffers: _StepBuffers, op: PipelineOp) -> BackwardResult | None:
        stage_id, microbatch = op.stage_id, op.microbatch
        programs = self.stages[stage_id].programs
        if not self.stages[stage_id].is_local:
            return None
        assert programs.backward is not None
        if stage_id not in buffers.gradients:
            buffers.gradients[stage_id] = programs.zero_gradients()
        definition = programs.definition
        inputs = {name: buffers.inputs.pop((name, microbatch)) for name in definition.input_channels}
        output_gradients = {
            name: buffers.output_gradients.pop((name, microbatch)) for name in definition.output_channels
        }
        result = programs.backward(
            buffers.compute_weights[stage_id],
            inputs,
            buffers.batch.stages[stage_id],
            self._index(stage_id, microbatch),
            buffers.residuals.pop((stage_id, microbatch)),
            output_gradients,
            buffers.gradients[stage_id],
        )
        buffers.gradients[stage_id] = result.parameter_gradients
        buffers.input_gradients |= {(name, microbatch): array for name, array in result.input_gradients.items()}
        return result

    def _hop_back(self, buffers: _StepBuffers, op: PipelineOp) -> list[jax.Array | None]:
        """The op goes from the stage that computed the gradient to the one that waits for it."""
        channels = self._channels_by_stage_pair[op.target_id, op.stage_id]
        sent = {}
        for channel in channels:
            key = (channel.name, op.microbatch)
            tables = buffers.batch.exchange(*key).gradient_tables
            sent[key] = _carry(channel.gradient_hop, buffers.input_gradients.pop(key, None), tables)
        buffers.output_gradients |= sent
        return list(sent.values())

    def _reduce(self, buffers: _StepBuffers, op: PipelineOp) -> Tree | None:
        stage = self.stages[op.stage_id]
        if not stage.is_local or stage.reduce is None:
            return None
        gradients = buffers.gradients[op.stage_id] = stage.reduce(buffers.gradients[op.stage_id])
        return gradients

    def _share_back(self, buffers: _StepBuffers, op: PipelineOp) -> list[jax.Array | None]:
        sent = []
        for tied in self._tied_between(op):
            if tied.borrower_path[0] not in self.stages[tied.borrower].programs.definition.trained_keys:
                continue  # both stages train, but not this parameter
            gradient = None
            if self.stages[tied.borrower].is_local:
                key, path = tied.borrower_path
                tree = buffers.gradients[tied.borrower]
                (layer,) = tree[key]
                leaves: dict[str, Any] = traverse_util.flatten_dict(tree[key][layer], sep="/")
                gradient = leaves.pop(path)
                buffers.gradients[tied.borrower] = {**tree, key: {layer: traverse_util.unflatten_dict(leaves, sep="/")}}
            received = tied.gradient_hop(gradient)
            sent.append(received)
            if self.stages[tied.owner].is_local:
                assert received is not None
                key, path = tied.owner_path
                tree = buffers.gradients[tied.owner]
                layers = tree[key]
                total = jnp.add(get_leaf(layers[tied.owner_layer], path), received)
                layers = {**layers, tied.owner_layer: set_leaf(layers[tied.owner_layer], path, total)}
                buffers.gradients[tied.owner] = {**tree, key: layers}
        return sent

    def _norm(self, buffers: _StepBuffers, op: PipelineOp) -> StepSummary:
        statistics = {
            stage_id: stage.loss_and_norm(buffers.gradients[stage_id] if stage.reduce else {}, buffers.losses[stage_id])
            for stage_id, stage in self.stages.items()
            if stage.is_local
        }
        summary = buffers.summary = self.global_reduction.reduce(statistics, buffers.state.all_finite)
        buffers.state.all_finite = summary.all_finite
        return summary

    def _update(self, buffers: _StepBuffers, op: PipelineOp) -> tuple[Tree, Tree] | None:
        stage_id, state = op.stage_id, buffers.state
        stage = self.stages[stage_id]
        if not stage.is_local or stage.update is None:
            return None
        assert buffers.summary is not None
        summary = self.global_reduction.on_stage(buffers.summary, stage_id)
        assert summary is not None
        masters, gradients = state.master_weights[stage_id], buffers.gradients.pop(stage_id)
        trained = {key: masters[key] for key in gradients}
        updated = stage.update(trained, state.optimizer_state[stage_id], gradients, summary)
        state.master_weights[stage_id], state.optimizer_state[stage_id] = {**masters, **updated[0]}, updated[1]
        return updated

    # ------------------------------------------------------------------ helpers

    def _tied_between(self, op: PipelineOp) -> list[TiedParameter]:
        endpoints = {op.stage_id, op.target_id}
        return [tied for tied in self.tied_parameters if {tied.owner, tied.borrower} == endpoints]

    def _mark(self, op: PipelineOp, outputs: Any) -> Any:
        """A small array that is ready when an op is finished, of the ops in which devices of processes meet."""
        if op.kind == "norm":
            return outputs.gradient_norm
        if op.kind not in _HOPS:
            return None
        if op.kind == "hop":
            hop = self._channels_by_stage_pair[op.stage_id, op.target_id][-1].activation_hop
        else:
            hop = self._channels_by_stage_pair[op.target_id, op.stage_id][-1].gradient_hop
        return hop.arrived if isinstance(hop, PermuteHop | ExchangeHop) else None

    def _index(self, stage_id: StageId, microbatch: int) -> jax.Array:
        """The number of a microbatch on a stage's submesh, made once."""
        key = (stage_id, microbatch)
        if key not in self._indices:
            sharding = NamedSharding(self.stages[stage_id].programs.mesh, P())
            self._indices[key] = jax.make_array_from_callback((), sharding, lambda _: np.int32(microbatch))
        return self._indices[key]


def _carry(hop: Hop | ExchangeHop, array: jax.Array | None, tables: PlacedTables | None) -> jax.Array | None:
    """The array at the other end of a hop; only an exchange needs tables."""
    return hop(array, tables) if isinstance(hop, ExchangeHop) else hop(array)
