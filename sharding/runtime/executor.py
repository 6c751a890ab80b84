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

from sharding.ops import Part, Schedule
from sharding.runtime.agreement import Agreement, Decision
from sharding.runtime.broker import Hop
from sharding.runtime.stage import Microbatches, Node, StagePrograms, Tree
from sharding.trees import drop_leaf, get_leaf, set_leaf

Key = tuple[str, int]
"""(channel, microbatch)."""

Watch = Callable[[Part, Any], None]


@dataclasses.dataclass(frozen=True)
class Stage:
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
    stats: Callable[[Tree, dict[str, jax.Array]], jax.Array]
    update: Callable[[Tree, Tree, Tree, Decision], tuple[Tree, Tree]] | None

    @property
    def local(self) -> bool:
        """Whether this process has devices of the stage."""
        return any(d.process_index == jax.process_index() for d in self.programs.mesh.devices.flat)


@dataclasses.dataclass(frozen=True)
class Channel:
    """Activations from one stage to another, and the hops that carry them and their gradients."""

    name: str
    source: Node
    target: Node
    forth: Hop
    back: Hop


@dataclasses.dataclass(frozen=True)
class Share:
    """A parameter of one stage that another borrows (tied embeddings).

    Attributes:
        owner, borrower: Stages.
        owned, borrowed: (key, path) of the parameter in either stage's parameters.
        layer: Name of the owner's layer that holds it.
        forth, back: Hops of the compute weight and of its reduced gradient.
    """

    owner: Node
    borrower: Node
    owned: tuple[str, str]
    borrowed: tuple[str, str]
    layer: str
    forth: Hop
    back: Hop


@dataclasses.dataclass
class State:
    """What training changes: masters and optimizer state by stage, key and layer; and whether all was finite."""

    masters: dict[Node, Tree]
    optimizer: dict[Node, Tree]
    ok: jax.Array


@dataclasses.dataclass
class _Step:
    """Everything in flight during one pass over the schedule."""

    state: State
    batch: Mapping[Node, Microbatches]
    weights: dict[Node, Tree]
    losses: dict[Node, dict[str, jax.Array]] = dataclasses.field(default_factory=dict)
    gradients: dict[Node, Tree] = dataclasses.field(default_factory=dict)
    outputs: dict[Key, jax.Array | None] = dataclasses.field(default_factory=dict)
    inputs: dict[Key, jax.Array | None] = dataclasses.field(default_factory=dict)
    output_gradients: dict[Key, jax.Array | None] = dataclasses.field(default_factory=dict)
    input_gradients: dict[Key, jax.Array | None] = dataclasses.field(default_factory=dict)
    residuals: dict[tuple[Node, int], Any] = dataclasses.field(default_factory=dict)
    judged: dict[tuple[Node, int], Tree] = dataclasses.field(default_factory=dict)
    decision: Decision | None = None

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
        stages: Mapping[Node, Stage],
        channels: tuple[Channel, ...],
        shares: tuple[Share, ...],
        agreement: Agreement,
        training: Schedule,
        evaluation: Schedule,
    ) -> None:
        self.stages, self.channels, self.shares, self.agreement = stages, channels, shares, agreement
        self.training, self.evaluation = training, evaluation
        self._between: dict[tuple[Node, Node], list[Channel]] = {}
        for channel in channels:
            self._between.setdefault((channel.source, channel.target), []).append(channel)
        self._indices: dict[tuple[Node, int], jax.Array] = {}
        self._run: dict[str, Callable[[_Step, Part], None]] = {
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
        self, state: State, batch: Mapping[Node, Microbatches], watch: Watch | None = None
    ) -> tuple[State, Decision]:
        """One training step; the state's buffers are donated. The decision is not read here.

        Args:
            state, batch: What to train, on what.
            watch: Called after every part with the part and all arrays in flight, to time it.
        """
        step = self._pass(state, batch, frozenset(self._run), watch)
        assert step.decision is not None
        return step.state, step.decision

    def gradients(self, state: State, batch: Mapping[Node, Microbatches]) -> tuple[dict[Node, Tree], Decision]:
        """Reduced gradients by stage, key and layer, and the losses, without an update; the state stays as it is."""
        step = self._pass(state, batch, frozenset(self._run) - {"update"})
        assert step.decision is not None
        return step.gradients, step.decision

    def compute_weights(self, state: State) -> dict[Node, Tree]:
        """The compute weights of all stages, for several evaluations of one state."""
        return self._pass(state, {}, frozenset({"gather", "share"})).weights

    def _pass(
        self, state: State, batch: Mapping[Node, Microbatches], kinds: frozenset[str], watch: Watch | None = None
    ) -> "_Step":
        """Runs the ops of some kinds, in the training schedule's order."""
        step = _Step(State(dict(state.masters), dict(state.optimizer), state.ok), batch, {})
        for op in self.training.ops:
            for part in op.parts:
                if part.kind in kinds:
                    self._run[part.kind](step, part)
                    if watch:
                        watch(part, step.in_flight())
        return step

    def evaluate(
        self, weights: dict[Node, Tree], batch: Mapping[Node, Microbatches]
    ) -> dict[Node, list[tuple[dict[str, jax.Array], Tree]]]:
        """Losses by name, `[instances]` each, and judged arrays of every stage and microbatch; forward only."""
        step = _Step(State({}, {}, jnp.ones(())), batch, weights)
        results: dict[Node, list[tuple[dict[str, jax.Array], Tree]]] = {node: [] for node in self.stages}
        for op in self.evaluation.ops:
            for part in op.parts:
                if part.kind == "hop":
                    self._hop(step, part)
                elif part.kind == "forward":
                    results[part.node].append(self._judge(step, part))
        return results

    # ------------------------------------------------------------------ one method a kind of op

    def _gather(self, step: _Step, part: Part) -> None:
        node = part.node
        if self.stages[node].local:
            step.weights[node] = self.stages[node].gather(step.state.masters[node])

    def _share(self, step: _Step, part: Part) -> None:
        for share in self._shares_of(part):
            key, path = share.owned
            leaf = get_leaf(step.weights[share.owner][key], path) if share.owner in step.weights else None
            arrived = share.forth(leaf)
            if self.stages[share.borrower].local:
                key, path = share.borrowed
                weights = step.weights[share.borrower]
                step.weights[share.borrower] = {**weights, key: set_leaf(weights[key], path, arrived)}

    def _forward(self, step: _Step, part: Part) -> None:
        node, microbatch = part.node, part.microbatch
        stage = self.stages[node]
        programs = stage.programs
        if not stage.local:
            step.outputs |= {(name, microbatch): None for name in programs.body.outputs}
            return
        losses = step.losses[node] if node in step.losses else programs.zero_losses()
        inputs = {name: step.inputs[name, microbatch] for name in programs.body.inputs}
        outputs, residuals, step.losses[node] = programs.forward(
            step.weights[node], inputs, step.batch[node], self._index(node, microbatch), losses
        )
        step.outputs |= {(name, microbatch): array for name, array in outputs.items()}
        if programs.backward is None:
            for name in programs.body.inputs:
                del step.inputs[name, microbatch]
        else:
            step.residuals[node, microbatch] = residuals

    def _judge(self, step: _Step, part: Part) -> tuple[dict[str, jax.Array], Tree]:
        node, microbatch = part.node, part.microbatch
        programs = self.stages[node].programs
        inputs = {name: step.inputs.pop((name, microbatch)) for name in programs.body.inputs}
        outputs, losses, judged = programs.evaluate(
            step.weights[node], inputs, step.batch[node], self._index(node, microbatch)
        )
        step.outputs |= {(name, microbatch): array for name, array in outputs.items()}
        return losses, judged

    def _hop(self, step: _Step, part: Part) -> None:
        for channel in self._between[part.node, part.target]:
            key = (channel.name, part.microbatch)
            step.inputs[key] = channel.forth(step.outputs.pop(key, None))

    def _backward(self, step: _Step, part: Part) -> None:
        node, microbatch = part.node, part.microbatch
        stage = self.stages[node]
        programs = stage.programs
        if not stage.local:
            return
        if node not in step.gradients:
            step.gradients[node] = programs.zero_gradients()
        inputs = {name: step.inputs.pop((name, microbatch)) for name in programs.body.inputs}
        outputs = {name: step.output_gradients.pop((name, microbatch)) for name in programs.body.outputs}
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

    def _hop_back(self, step: _Step, part: Part) -> None:
        """The part is named from the stage that computed the gradient to the one that waits for it."""
        for channel in self._between[part.target, part.node]:
            key = (channel.name, part.microbatch)
            step.output_gradients[key] = channel.back(step.input_gradients.pop(key, None))

    def _reduce(self, step: _Step, part: Part) -> None:
        node = part.node
        stage = self.stages[node]
        if stage.local and stage.reduce is not None:
            step.gradients[node] = stage.reduce(step.gradients[node])

    def _share_back(self, step: _Step, part: Part) -> None:
        for share in self._shares_of(part):
            if share.borrowed[0] not in self.stages[share.borrower].programs.body.trained:
                continue  # both stages train, but not this parameter
            gradient = None
            if self.stages[share.borrower].local:
                key, path = share.borrowed
                tree = step.gradients[share.borrower]
                (layer,) = tree[key]
                gradient = get_leaf(tree[key][layer], path)
                rest = {layer: drop_leaf(tree[key][layer], path)}
                step.gradients[share.borrower] = {**tree, key: rest}
            arrived = share.back(gradient)
            if self.stages[share.owner].local:
                key, path = share.owned
                tree = step.gradients[share.owner]
                total = jnp.add(get_leaf(tree[key][share.layer], path), arrived)
                layers = {**tree[key], share.layer: set_leaf(tree[key][share.layer], path, total)}
                step.gradients[share.owner] = {**tree, key: layers}

    def _norm(self, step: _Step, part: Part) -> None:
        stats = {
            node: stage.stats(step.gradients[node] if stage.reduce else {}, step.losses[node])
            for node, stage in self.stages.items()
            if stage.local
        }
        step.decision = self.agreement.decide(stats, step.state.ok)
        step.state.ok = step.decision.ok

    def _update(self, step: _Step, part: Part) -> None:
        node = part.node
        stage = self.stages[node]
        if stage.local and stage.update is not None:
            assert step.decision is not None
            decision = self.agreement.view(step.decision, node)
            step.state.masters[node], step.state.optimizer[node] = stage.update(
                step.state.masters[node], step.state.optimizer[node], step.gradients.pop(node), decision
            )

    # ------------------------------------------------------------------ helpers

    def _shares_of(self, part: Part) -> list[Share]:
        ends = {part.node, part.target}
        return [share for share in self.shares if {share.owner, share.borrower} == ends]

    def _index(self, node: Node, microbatch: int) -> jax.Array:
        """The number of a microbatch on a stage's submesh, made once."""
        key = (node, microbatch)
        if key not in self._indices:
            sharding = NamedSharding(self.stages[node].programs.mesh, P())
            self._indices[key] = jax.make_array_from_callback((), sharding, lambda _: np.int32(microbatch))
        return self._indices[key]
