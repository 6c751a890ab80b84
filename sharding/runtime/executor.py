"""Runs a schedule: every op in order, as its stage's program on its submesh or as a hop between two stages.

Everything is dispatched asynchronously; no value is read on the host. Residuals and activations are dropped as soon as
the last op that needs them has been dispatched. The trainer's engine builds one executor, and a step of training is one
call of `Executor.step`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
from flax import traverse_util

from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.bundled_ops import bundle_calls
from sharding.runtime.global_reduction import GlobalReduction, StepSummary
from sharding.runtime.microbatch_ops import MicrobatchOps
from sharding.runtime.pipeline import (
    Channel,
    ExecutableStage,
    PlacedBatch,
    PlacedHyperparameters,
    TiedParameter,
    TrainState,
)
from sharding.runtime.pipeline_ops import PipelineOps
from sharding.runtime.stages.bundles import BundledPrograms
from sharding.runtime.stages.compilation import ProgramCall
from sharding.runtime.step_buffers import OpCall, StageEvaluation, StepBuffers
from sharding.schedules.op_log import OpLog
from sharding.schedules.ops import OpKind, PipelineOp, Schedule
from sharding.trees import Tree, get_leaf, set_leaf

OpCallback = Callable[[PipelineOp, Any], None]
"""Called after every op as `callback(op, outputs)`; `outputs` are the arrays that the op made, as what it returned them
in (`ForwardResult`, `BackwardResult`, `StepSummary`, a tree of arrays), to wait for when timing; none of an op that has
nothing to do. The arrays of a bundle are ready at once."""

_ALL_KINDS: frozenset[OpKind] = frozenset(get_args(OpKind))
_LOGGED_STEPS = 4
"""More than training has in flight."""


class Executor:
    """Runs training and evaluation schedules over stages.

    Args:
        stages: In topological order.
        channels: All activations between stages.
        tied_parameters: All parameters that a stage borrows from another.
        global_reduction: Norm, clipping and finiteness, once a step.
        training_schedule, evaluation_schedule: Already restricted to this process's devices. An evaluation has no
            bundles. The devices of bundles have been checked (`bundled_ops.check_device_order`).
        hyperparameters: Arguments of the global reduction and the updates.
        bundled_programs: Compiled bundles of another executor of the same stages, to share; None for new ones.

    Attributes:
        microbatch_ops: Runs the forwards, backwards, wgrads and hops.
        bundled_programs: The programs of the training schedule's bundles.
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
        hyperparameters: PlacedHyperparameters,
        bundled_programs: BundledPrograms | None = None,
    ) -> None:
        self.stages, self.channels, self.tied_parameters = stages, channels, tied_parameters
        self.global_reduction, self.hyperparameters = global_reduction, hyperparameters
        self.training_schedule, self.evaluation_schedule = training_schedule, evaluation_schedule
        self.op_log = OpLog(_LOGGED_STEPS * len(training_schedule.ops))
        self.microbatch_ops = MicrobatchOps(stages, channels, training_schedule.op_graph.stage_graph)
        self._pipeline_ops = PipelineOps(stages)
        self._compiled = training_schedule.op_graph.stage_graph.compiled
        self.bundled_programs = bundled_programs or BundledPrograms()
        self._prepare_call: dict[OpKind, Callable[[StepBuffers, PipelineOp], OpCall | None]] = {
            "gather": self._gather,
            "forward": self._forward,
            "backward": self._backward,
            "wgrad": self.microbatch_ops.wgrad,
            "reduce": self._reduce,
        }
        self._run_op: dict[OpKind, Callable[[StepBuffers, PipelineOp], Any]] = {
            "send_tied_weight": self._send_tied_weight,
            "hop": self.microbatch_ops.hop,
            "gradient_hop": self.microbatch_ops.gradient_hop,
            "send_tied_gradient": self._send_tied_gradient,
            "global_norm": self._global_norm,
            "update": self._update,
        }

    def with_hyperparameters(self, hyperparameters: PlacedHyperparameters) -> "Executor":
        """An executor of the same compiled programs that gives them other hyperparameters."""
        return Executor(
            stages=self.stages,
            channels=self.channels,
            tied_parameters=self.tied_parameters,
            global_reduction=self.global_reduction,
            training_schedule=self.training_schedule,
            evaluation_schedule=self.evaluation_schedule,
            hyperparameters=hyperparameters,
            bundled_programs=self.bundled_programs,
        )

    def step(
        self, state: TrainState, batch: PlacedBatch, callback: OpCallback | None = None
    ) -> tuple[TrainState, StepSummary]:
        """One training step. The buffers of the state are donated; the summary is not read here.

        Args:
            state: Master weights and optimizer state.
            batch: The global batch.
            callback: Called after every op, to time it.
        """
        buffers = StepBuffers(state=state, batch=batch, compute_weights={})
        buffers = self._run_training_ops(buffers, _ALL_KINDS, callback)
        assert buffers.summary is not None
        return buffers.state, buffers.summary

    def gradients(self, state: TrainState, batch: PlacedBatch) -> tuple[dict[StageId, Tree], StepSummary]:
        """Reduced gradients by stage, key and layer, and the losses, without an update; the state stays as it is."""
        buffers = StepBuffers(state=state, batch=batch, compute_weights={})
        buffers = self._run_training_ops(buffers, _ALL_KINDS - {"update"})
        assert buffers.summary is not None
        return buffers.gradients, buffers.summary

    def update(self, state: TrainState, gradients: Mapping[StageId, Tree]) -> tuple[TrainState, StepSummary]:
        """The update of a step whose reduced gradients are given, clipped by their global norm; losses count as zero.

        The buffers of the state are donated.
        """
        losses = {
            (stage_id, pipeline_replica): zeros
            for stage_id, stage in self.stages.items()
            for pipeline_replica, zeros in enumerate(stage.zero_losses())
            if zeros is not None
        }
        given = StepBuffers(
            state=state, batch=PlacedBatch({}), compute_weights={}, losses=losses, gradients=dict(gradients)
        )
        buffers = self._run_training_ops(given, frozenset({"global_norm", "update"}))
        assert buffers.summary is not None
        return buffers.state, buffers.summary

    def compute_weights(self, state: TrainState) -> dict[StageId, Tree]:
        """The compute weights of all stages, for several evaluations of one state."""
        buffers = StepBuffers(state=state, batch=PlacedBatch({}), compute_weights={})
        return self._run_training_ops(buffers, frozenset({"gather", "send_tied_weight"})).compute_weights

    def bundle_calls(self, calls: Sequence[ProgramCall]) -> list[ProgramCall]:
        """Returns the calls of the training schedule's bundles, given all calls of this process's stages."""
        return bundle_calls(self.training_schedule, self.stages, self.bundled_programs, calls)

    def _run_training_ops(
        self, buffers: StepBuffers, kinds: frozenset[str], callback: OpCallback | None = None
    ) -> StepBuffers:
        """Runs the ops of some kinds in the order of the training schedule, on buffers whose state is copied first."""
        state = buffers.state
        buffers.state = TrainState(dict(state.master_weights), dict(state.optimizer_state), state.all_finite)
        for scheduled in self.training_schedule.by_program:
            ops = [op for op in scheduled if op.kind in kinds]
            if not ops:
                continue
            self.op_log.begin(ops[0])
            for op, outputs in zip(ops, self._run(buffers, ops), strict=True):
                self.op_log.end(op, self._mark(buffers.batch, op, outputs))
                if callback:
                    callback(op, outputs)
        return buffers

    def _run(self, buffers: StepBuffers, ops: Sequence[PipelineOp]) -> list[Any]:
        """Runs an op, or a bundle, as one program where both ops have something to do; returns its arrays."""
        if ops[0].kind in self._run_op:
            return [self._run_op[op.kind](buffers, op) for op in ops]
        calls = [self._prepare_call[op.kind](buffers, op) for op in ops]
        to_run = [call for call in calls if call is not None]
        if len(to_run) < 2:
            return [call and call.run() for call in calls]
        program, arguments = self.bundled_programs.bundle(*(call.call for call in to_run))
        return [call.store(result) for call, result in zip(to_run, program(*arguments), strict=True)]

    def evaluate(
        self, compute_weights: dict[StageId, Tree], batch: PlacedBatch
    ) -> dict[StageId, dict[int, StageEvaluation]]:
        """Losses and auxiliary metrics by microbatch of every stage that runs in this process; forward only."""
        state = TrainState({}, {}, self.global_reduction.initial_flag())
        buffers = StepBuffers(state=state, batch=batch, compute_weights=compute_weights)
        results: dict[StageId, dict[int, StageEvaluation]] = {stage_id: {} for stage_id in self.stages}
        for op in self.evaluation_schedule.ops:
            self.op_log.begin(op)
            if op.kind == "hop":
                self.microbatch_ops.hop(buffers, op)
            elif op.kind == "forward":
                if op.stage_id in self._compiled:
                    results[op.stage_id] |= self._pipeline_ops.evaluate(buffers, op)
                else:
                    results[op.stage_id][op.microbatch] = self.microbatch_ops.evaluate(buffers, op)
            self.op_log.end(op, self._mark(batch, op, None))
        return results

    # ------------------------------------------------------------------ each kind of op: what it made, or its call

    def _gather(self, buffers: StepBuffers, op: PipelineOp) -> OpCall | None:
        stage = self.stages[op.stage_id]
        if not stage.is_local:
            return None
        call = ProgramCall(stage.gather, (buffers.state.master_weights[op.stage_id],))
        return OpCall(call, functools.partial(_store, buffers.compute_weights, op.stage_id))

    def _forward(self, buffers: StepBuffers, op: PipelineOp) -> OpCall | None:
        return self._ops_of(op.stage_id).forward(buffers, op)

    def _backward(self, buffers: StepBuffers, op: PipelineOp) -> OpCall | None:
        return self._ops_of(op.stage_id).backward(buffers, op)

    def _send_tied_weight(self, buffers: StepBuffers, op: PipelineOp) -> list[jax.Array | None]:
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

    def _reduce(self, buffers: StepBuffers, op: PipelineOp) -> OpCall | None:
        stage = self.stages[op.stage_id]
        if not stage.is_local or stage.reduce is None:
            return None
        by_pipeline_replica = [
            buffers.unreduced_gradients.pop((op.stage_id, pipeline_replica), None)
            for pipeline_replica in range(len(stage.pipeline_replicas))
        ]
        call = ProgramCall(stage.reduce, (stage.join_gradients(by_pipeline_replica),))
        return OpCall(call, functools.partial(_store, buffers.gradients, op.stage_id))

    def _send_tied_gradient(self, buffers: StepBuffers, op: PipelineOp) -> list[jax.Array | None]:
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

    def _global_norm(self, buffers: StepBuffers, op: PipelineOp) -> StepSummary:
        statistics = {}
        for stage_id, stage in self.stages.items():
            if stage.is_local:
                losses = stage.join_losses(
                    [
                        buffers.losses.get((stage_id, pipeline_replica))
                        for pipeline_replica in range(len(stage.pipeline_replicas))
                    ]
                )
                statistics[stage_id] = stage.loss_and_norm(buffers.gradients[stage_id] if stage.reduce else {}, losses)
        summary = buffers.summary = self.global_reduction.reduce(
            statistics, buffers.state.all_finite, self.hyperparameters.max_norm
        )
        buffers.state.all_finite = summary.all_finite
        return summary

    def _update(self, buffers: StepBuffers, op: PipelineOp) -> tuple[Tree, Tree] | None:
        stage_id, state = op.stage_id, buffers.state
        stage = self.stages[stage_id]
        if not stage.is_local or stage.update is None:
            return None
        assert buffers.summary is not None
        decision = self.global_reduction.on_stage(buffers.summary, stage_id)
        masters, gradients = state.master_weights[stage_id], buffers.gradients.pop(stage_id)
        trained = {key: masters[key] for key in gradients}
        hyperparameters = self.hyperparameters.by_stage[stage_id]
        updated = stage.update(trained, state.optimizer_state[stage_id], gradients, decision, hyperparameters)
        state.master_weights[stage_id], state.optimizer_state[stage_id] = {**masters, **updated[0]}, updated[1]
        return updated

    # ------------------------------------------------------------------ helpers

    def _ops_of(self, stage_id: StageId) -> PipelineOps | MicrobatchOps:
        return self._pipeline_ops if stage_id in self._compiled else self.microbatch_ops

    def _tied_between(self, op: PipelineOp) -> list[TiedParameter]:
        endpoints = {op.stage_id, op.target_id}
        return [tied for tied in self.tied_parameters if {tied.owner, tied.borrower} == endpoints]

    def _mark(self, batch: PlacedBatch, op: PipelineOp, outputs: Any) -> Any:
        """A small array that is ready when an op is finished, of the ops in which devices of processes meet."""
        return outputs.gradient_norm if op.kind == "global_norm" else self.microbatch_ops.arrived(batch, op)


def _store(arrays: dict[StageId, Tree], stage_id: StageId, result: Tree) -> Tree:
    arrays[stage_id] = result
    return result
