"""Runs a schedule: for every op in order, its program on its stage's submesh, or a hop between two.

Everything is dispatched asynchronously; no value is read on the host. Residuals and activations are dropped as soon
as the last op that needs them has been dispatched.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.runtime.global_reduction import GlobalReduction, StepSummary
from sharding.runtime.hops import Hop
from sharding.runtime.stage_programs import Microbatches, StageId, StagePrograms, Tree
from sharding.schedules.ops import PipelineOp, Schedule
from sharding.trees import drop_leaf, get_leaf, set_leaf

Key = tuple[str, int]
"""(channel, microbatch)."""

OpCallback = Callable[[PipelineOp, Any], None]


@dataclasses.dataclass(frozen=True)
class ExecutableStage:
    """One stage as the executor runs it; every field but the programs is a function of global arrays.

    Attributes:
        programs: Forward, backward, evaluation.
        gather: Masters to compute weights.
        reduce: Unreduced gradients to gradients shaped and sharded like the masters; None where nothing trains.
        stats: `(reduced gradients or {}, losses by name, [instances] each) -> [1, 1 + losses]`: squared norm, losses.
        update: `(masters, optimizer state, gradients, decision) -> (masters, optimizer state)`.
    """

    programs: StagePrograms
    gather: Callable[[Tree], Tree]
    reduce: Callable[[Tree], Tree] | None
    loss_and_norm: Callable[[Tree, dict[str, jax.Array]], jax.Array]
    update: Callable[[Tree, Tree, Tree, StepSummary], tuple[Tree, Tree]] | None

    @property
    def is_local(self) -> bool:
        """Whether this process has devices of the stage."""
        return any(d.process_index == jax.process_index() for d in self.programs.mesh.devices.flat)


@dataclasses.dataclass(frozen=True)
class Channel:
    """Activations from one stage to another, and the hops that carry them and their gradients."""

    name: str
    source: StageId
    target: StageId
    activation_hop: Hop
    gradient_hop: Hop


@dataclasses.dataclass(frozen=True)
class TiedParameter:
    """A parameter of one stage that another borrows (tied embeddings).

    Attributes:
        owner, borrower: Stages.
        owned, borrowed: (key, path) of the parameter in either stage's parameters.
        layer: Name of the owner's layer that holds it.
        forth, back: Hops of the compute weight and of its reduced gradient.
    """

    owner: StageId
    borrower: StageId
    owner_path: tuple[str, str]
    borrower_path: tuple[str, str]
    owner_layer: str
    weight_hop: Hop
    gradient_hop: Hop


@dataclasses.dataclass
class TrainState:
    """What training changes: masters and optimizer state by stage, key and layer; and whether all was finite."""

    master_weights: dict[StageId, Tree]
    optimizer_state: dict[StageId, Tree]
    all_finite: jax.Array


@dataclasses.dataclass
class _Step:
    """Everything in flight during one pass over the schedule."""

    state: TrainState
    batch: Mapping[StageId, Microbatches]
    weights: dict[StageId, Tree]
    losses: dict[StageId, dict[str, jax.Array]] = dataclasses.field(default_factory=dict)
    gradients: dict[StageId, Tree] = dataclasses.field(default_factory=dict)
    outputs: dict[Key, jax.Array | None] = dataclasses.field(default_factory=dict)
    inputs: dict[Key, jax.Array | None] = dataclasses.field(default_factory=dict)
    output_gradients: dict[Key, jax.Array | None] = dataclasses.field(default_factory=dict)
    input_gradients: dict[Key, jax.Array | None] = dataclasses.field(default_factory=dict)
    residuals: dict[tuple[StageId, int], Any] = dataclasses.field(default_factory=dict)
    judged: dict[tuple[StageId, int], Tree] = dataclasses.field(default_factory=dict)
    decision: StepSummary | None = None

    def in_flight(self) -> Any:
        """All arrays of the pass, as a pytree."""
        return {**vars(self), "state": vars(self.state), "batch": None}


class Executor:
    """Runs training and evaluation schedules over stages.

    Args:
        stages: In topological order.
        channels: All activations between stages.
        shares: All borrowed parameters.
        agreement: Decides once a step.
        training, evaluation: The schedules, already restricted to this process's devices.
    """

    def __init__(
        self,
        stages: Mapping[StageId, ExecutableStage],
        channels: tuple[Channel, ...],
        shares: tuple[TiedParameter, ...],
        agreement: GlobalReduction,
        training: Schedule,
        evaluation: Schedule,
    ) -> None:
        self.stages, self.channels, self.tied_parameters, self.global_reduction = stages, channels, shares, agreement
        self.training_schedule, self.evaluation_schedule = training, evaluation
        self._between: dict[tuple[StageId, StageId], list[Channel]] = {}
        for channel in channels:
            self._between.setdefault((channel.source, channel.target), []).append(channel)
        self._indices: dict[tuple[StageId, int], jax.Array] = {}
        self._run: dict[str, Callable[[_Step, PipelineOp], None]] = {
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
        self, state: TrainState, batch: Mapping[StageId, Microbatches], callback: OpCallback | None = None
    ) -> tuple[TrainState, StepSummary]:
        """One training step; the state's buffers are donated. The decision is not read here.

        Args:
            state, batch: What to train, on what.
            watch: Called after every part with the part and all arrays in flight, to time it.
        """
        step = self._pass(state, batch, frozenset(self._run), callback)
        assert step.decision is not None
        return step.state, step.decision

    def gradients(
        self, state: TrainState, batch: Mapping[StageId, Microbatches]
    ) -> tuple[dict[StageId, Tree], StepSummary]:
        """Reduced gradients by stage, key and layer, and the losses, without an update; the state stays as it is."""
        step = self._pass(state, batch, frozenset(self._run) - {"update"})
        assert step.decision is not None
        return step.gradients, step.decision

    def compute_weights(self, state: TrainState) -> dict[StageId, Tree]:
        """The compute weights of all stages, for several evaluations of one state."""
        return self._pass(state, {}, frozenset({"gather", "share"})).weights

    def _pass(
        self,
        state: TrainState,
        batch: Mapping[StageId, Microbatches],
        kinds: frozenset[str],
        watch: OpCallback | None = None,
    ) -> "_Step":
        """Runs the ops of some kinds, in the training schedule's order."""
        step = _Step(TrainState(dict(state.master_weights), dict(state.optimizer_state), state.all_finite), batch, {})
        for op in self.training_schedule.ops:
            if op.kind in kinds:
                self._run[op.kind](step, op)
                if watch:
                    watch(op, step.in_flight())
        return step

    def evaluate(
        self, weights: dict[StageId, Tree], batch: Mapping[StageId, Microbatches]
    ) -> dict[StageId, list[tuple[dict[str, jax.Array], Tree]]]:
        """Losses by name, `[instances]` each, and judged arrays of every stage and microbatch; forward only."""
        step = _Step(TrainState({}, {}, jnp.ones(())), batch, weights)
        results: dict[StageId, list[tuple[dict[str, jax.Array], Tree]]] = {node: [] for node in self.stages}
        for op in self.evaluation_schedule.ops:
            if op.kind == "hop":
                self._hop(step, op)
            elif op.kind == "forward":
                results[op.stage_id].append(self._judge(step, op))
        return results

    # ------------------------------------------------------------------ one method a kind of op

    def _gather(self, step: _Step, part: PipelineOp) -> None:
        node = part.stage_id
        if self.stages[node].is_local:
            step.weights[node] = self.stages[node].gather(step.state.master_weights[node])

    def _share(self, step: _Step, part: PipelineOp) -> None:
        for share in self._shares_of(part):
            key, path = share.owner_path
            leaf = get_leaf(step.weights[share.owner][key], path) if share.owner in step.weights else None
            arrived = share.weight_hop(leaf)
            if self.stages[share.borrower].is_local:
                key, path = share.borrower_path
                weights = step.weights[share.borrower]
                step.weights[share.borrower] = {**weights, key: set_leaf(weights[key], path, arrived)}

    def _forward(self, step: _Step, part: PipelineOp) -> None:
        node, microbatch = part.stage_id, part.microbatch
        stage = self.stages[node]
        programs = stage.programs
        if not stage.is_local:
            step.outputs |= {(name, microbatch): None for name in programs.definition.output_channels}
            return
        losses = step.losses[node] if node in step.losses else programs.zero_losses()
        inputs = {name: step.inputs[name, microbatch] for name in programs.definition.input_channels}
        outputs, residuals, step.losses[node] = programs.forward(
            step.weights[node], inputs, step.batch[node], self._index(node, microbatch), losses
        )
        step.outputs |= {(name, microbatch): array for name, array in outputs.items()}
        if programs.backward is None:
            for name in programs.definition.input_channels:
                del step.inputs[name, microbatch]
        else:
            step.residuals[node, microbatch] = residuals

    def _judge(self, step: _Step, part: PipelineOp) -> tuple[dict[str, jax.Array], Tree]:
        node, microbatch = part.stage_id, part.microbatch
        programs = self.stages[node].programs
        inputs = {name: step.inputs.pop((name, microbatch)) for name in programs.definition.input_channels}
        outputs, losses, judged = programs.evaluate(
            step.weights[node], inputs, step.batch[node], self._index(node, microbatch)
        )
        step.outputs |= {(name, microbatch): array for name, array in outputs.items()}
        return losses, judged

    def _hop(self, step: _Step, part: PipelineOp) -> None:
        for channel in self._between[part.stage_id, part.target_id]:
            key = (channel.name, part.microbatch)
            step.inputs[key] = channel.activation_hop(step.outputs.pop(key, None))

    def _backward(self, step: _Step, part: PipelineOp) -> None:
        node, microbatch = part.stage_id, part.microbatch
        stage = self.stages[node]
        programs = stage.programs
        if not stage.is_local:
            return
        if node not in step.gradients:
            step.gradients[node] = programs.zero_gradients()
        inputs = {name: step.inputs.pop((name, microbatch)) for name in programs.definition.input_channels}
        outputs = {name: step.output_gradients.pop((name, microbatch)) for name in programs.definition.output_channels}
        more, step.gradients[node] = programs.backward(
            step.weights[node],
            inputs,
            step.batch[node],
            self._index(node, microbatch),
            step.residuals.pop((node, microbatch)),
            outputs,
            step.gradients[node],
        )
        step.input_gradients |= {(name, microbatch): array for name, array in more.items()}

    def _hop_back(self, step: _Step, part: PipelineOp) -> None:
        """The part is named from the stage that computed the gradient to the one that waits for it."""
        for channel in self._between[part.target_id, part.stage_id]:
            key = (channel.name, part.microbatch)
            step.output_gradients[key] = channel.gradient_hop(step.input_gradients.pop(key, None))

    def _reduce(self, step: _Step, part: PipelineOp) -> None:
        node = part.stage_id
        stage = self.stages[node]
        if stage.is_local and stage.reduce is not None:
            step.gradients[node] = stage.reduce(step.gradients[node])

    def _share_back(self, step: _Step, part: PipelineOp) -> None:
        for share in self._shares_of(part):
            if share.borrower_path[0] not in self.stages[share.borrower].programs.definition.trained_keys:
                continue  # both stages train, but not this parameter
            gradient = None
            if self.stages[share.borrower].is_local:
                key, path = share.borrower_path
                tree = step.gradients[share.borrower]
                (layer,) = tree[key]
                gradient = get_leaf(tree[key][layer], path)
                rest = {layer: drop_leaf(tree[key][layer], path)}
                step.gradients[share.borrower] = {**tree, key: rest}
            arrived = share.gradient_hop(gradient)
            if self.stages[share.owner].is_local:
                key, path = share.owner_path
                tree = step.gradients[share.owner]
                total = jnp.add(get_leaf(tree[key][share.owner_layer], path), arrived)
                layers = {**tree[key], share.owner_layer: set_leaf(tree[key][share.owner_layer], path, total)}
                step.gradients[share.owner] = {**tree, key: layers}

    def _norm(self, step: _Step, part: PipelineOp) -> None:
        stats = {
            node: stage.loss_and_norm(step.gradients[node] if stage.reduce else {}, step.losses[node])
            for node, stage in self.stages.items()
            if stage.is_local
        }
        step.decision = self.global_reduction.reduce(stats, step.state.all_finite)
        step.state.all_finite = step.decision.all_finite

    def _update(self, step: _Step, part: PipelineOp) -> None:
        node = part.stage_id
        stage = self.stages[node]
        if stage.is_local and stage.update is not None:
            assert step.decision is not None
            decision = self.global_reduction.on_stage(step.decision, node)
            step.state.master_weights[node], step.state.optimizer_state[node] = stage.update(
                step.state.master_weights[node], step.state.optimizer_state[node], step.gradients.pop(node), decision
            )

    # ------------------------------------------------------------------ helpers

    def _shares_of(self, part: PipelineOp) -> list[TiedParameter]:
        ends = {part.stage_id, part.target_id}
        return [share for share in self.tied_parameters if {share.owner, share.borrower} == ends]

    def _index(self, node: StageId, microbatch: int) -> jax.Array:
        """The number of a microbatch on a stage's submesh, made once."""
        key = (node, microbatch)
        if key not in self._indices:
            sharding = NamedSharding(self.stages[node].programs.mesh, P())
            self._indices[key] = jax.make_array_from_callback((), sharding, lambda _: np.int32(microbatch))
        return self._indices[key]
