"""A stage's own programs: forward, backward and evaluation under `jax.shard_map` on its submesh.

Residuals stay on the stage's devices between forward and backward and hold activations only (`residuals.py`).
Parameters are cast once a step, before; their gradients come out unreduced over the data axes, are added up per
instance, and are reduced once a step (`masters.py`).
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pallas_kernels.varying import make_varying, varying_axes
from sharding.axes import Axes
from sharding.runtime.master_weights import device_count_along, is_partition_spec, replicated_data_axes
from sharding.runtime.residuals import VjpStructure, split_vjp
from sharding.trees import Tree

Arrays = dict[str, jax.Array]
StageId = tuple[str, int]
"""A stage: (unit, number of the stage in it)."""


@dataclasses.dataclass(frozen=True)
class StageDefinition:
    """What a stage computes, as a plain function of one device's shards.

    Attributes:
        node: (unit, stage).
        apply: `(parameters, inputs, batch, axes) -> (outputs by channel, losses by name, judged arrays)`; every array
            of activations has the rows first; each loss is a sum over the local rows.
        splits: For every parameter, the spec of its stacked form over the tensor and expert axes: experts lie with
            some of the data ranks each, all else with every one.
        shapes: For every parameter, the shape and compute precision of its stacked form.
        trained: Top-level keys of the parameters that get gradients.
        reads: Names of the batch arrays by module.
        inputs, outputs: Names of the channels that enter and leave.
        by_position: Those whose positions, the second dimension, lie over `Axes.sequence`.
    """

    stage_id: StageId
    apply: Callable[[Tree, Arrays, Mapping[str, Arrays], Axes], tuple[Arrays, Arrays, Arrays]]
    partition_specs: Tree
    shapes: Tree
    trained_keys: frozenset[str]
    batch_arrays: Mapping[str, tuple[str, ...]]
    input_channels: tuple[str, ...]
    output_channels: tuple[str, ...]
    sequence_parallel: frozenset[str] = frozenset()

    def channel_spec(self, name: str, axes: Axes) -> P:
        """Where the parts of a channel's activations lie."""
        return P(axes.data, axes.sequence) if name in self.sequence_parallel and axes.sequence else P(axes.data)


@dataclasses.dataclass(frozen=True)
class Microbatches:
    """A stage's share of the global batch on its submesh: arrays, or their shapes or specs.

    Attributes:
        rows: By module and name, `[m, r, ...]`: microbatches first, rows split over the data axes.
        step: `[2]` int32, seed and step, which key all randomness.
    """

    arrays: dict[str, dict[str, Any]]
    seed_and_step: Any


jax.tree_util.register_dataclass(Microbatches, ["arrays", "seed_and_step"], [])


class StagePrograms:
    """Compiled forward, backward and evaluation of one stage on one submesh.

    Args:
        body: What it computes.
        mesh, axes: Its submesh, and what its axes are for.
        inputs: Shape and dtype of each input channel of a microbatch.
        batch: Shapes of its share of the global batch.
        wanted: Input channels whose gradient is needed.
        backward: Whether it has a backward at all; if not, `forward` keeps no residuals.

    Attributes:
        outputs: Shape and dtype of each output channel of a microbatch.
        losses: Names of its losses, sorted; none where it has none.
        channels: Where the activations of each channel lie.
    """

    def __init__(
        self,
        body: StageDefinition,
        mesh: Mesh,
        axes: Axes,
        inputs: Mapping[str, jax.ShapeDtypeStruct],
        batch: Microbatches,
        wanted: frozenset[str],
        backward: bool,
    ) -> None:
        self.definition, self.mesh, self.axes, self.differentiated_inputs = body, mesh, axes, wanted
        self.batch_shapes = batch
        rows = P(axes.data)
        batch_specs = Microbatches(jax.tree.map(lambda _: P(None, axes.data), batch.arrays), P())
        channels = {name: body.channel_spec(name, axes) for name in (*body.input_channels, *body.output_channels)}
        self.channel_shardings = {name: NamedSharding(mesh, spec) for name, spec in channels.items()}
        self._operands = (
            body.partition_specs,
            {name: channels[name] for name in body.input_channels},
            batch_specs,
            P(),
        )
        self._abstract = (body.shapes, dict(inputs), batch, jax.ShapeDtypeStruct((), jnp.int32))
        outputs = {name: channels[name] for name in body.output_channels}
        self.evaluate = self._program(self._evaluate, self._operands, (outputs, rows, rows))
        found: tuple[dict, dict, dict] = jax.eval_shape(self.evaluate, *self._abstract)
        self.output_shapes, self.loss_names = found[0], tuple(sorted(found[1]))
        losses = dict.fromkeys(self.loss_names, rows)
        if not backward:
            self.forward = self._program(
                self._forward_only, (*self._operands, losses), (outputs, P(), losses), donate=(4,)
            )
            self.backward = None
            return
        self.closure, self._residual_axes = self._probe()
        residuals = [P(axes_of) for axes_of in self._residual_axes]
        self.forward = self._program(
            self._forward, (*self._operands, losses), (outputs, residuals, losses), donate=(4,)
        )
        gradients = self.gradient_specs()
        self.backward = self._program(
            self._backward,
            (*self._operands, residuals, outputs, gradients),
            ({name: channels[name] for name in wanted}, gradients),
            donate=(6,),
        )

    # ------------------------------------------------------------------ building

    def _program(self, function: Callable, in_specs: Any, out_specs: Any, donate: tuple[int, ...] = ()) -> Callable:
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)
        return jax.jit(mapped, donate_argnums=donate)

    def _probe(self) -> tuple[VjpStructure, list[tuple[str, ...]]]:
        """Traces the forward once to learn what it must save, and over which axes each residual varies."""
        learned: dict[str, Any] = {}

        def body(*operands: Any) -> list[jax.Array]:
            _, _, residuals, learned["closure"] = self._differentiate(*operands)
            learned["axes"] = [self._ordered(varying_axes(leaf)) for leaf in residuals]
            return [make_varying(leaf, self.mesh.axis_names)[None] for leaf in residuals]

        jax.eval_shape(self._program(body, self._operands, P(self.mesh.axis_names)), *self._abstract)
        return learned["closure"], learned["axes"]

    def _ordered(self, axes: frozenset[str]) -> tuple[str, ...]:
        return tuple(axis for axis in self.mesh.axis_names if axis in axes)

    def gradient_specs(self) -> Tree:
        """Specs of the unreduced gradients: one copy an instance that holds the parameter, stacked first."""
        return {
            key: jax.tree.map(
                lambda spec: P(replicated_data_axes(spec, self.axes), *spec),
                self.definition.partition_specs[key],
                is_leaf=is_partition_spec,
            )
            for key in sorted(self.definition.trained_keys)
        }

    @functools.cached_property
    def zero_gradients(self) -> Callable[[], Tree]:
        """Makes gradients of zero, in float32."""

        def one(spec: P, shape: jax.ShapeDtypeStruct) -> tuple[int, ...]:
            return (device_count_along(self.mesh, replicated_data_axes(spec, self.axes)), *shape.shape)

        shapes = {
            key: jax.tree.map(
                one, self.definition.partition_specs[key], self.definition.shapes[key], is_leaf=is_partition_spec
            )
            for key in sorted(self.definition.trained_keys)
        }
        shardings = jax.tree.map(
            lambda spec: NamedSharding(self.mesh, spec), self.gradient_specs(), is_leaf=is_partition_spec
        )

        def zeros() -> Tree:
            return jax.tree.map(lambda shape: jnp.zeros(shape), shapes, is_leaf=lambda s: isinstance(s, tuple))

        return jax.jit(zeros, out_shardings=shardings)

    @functools.cached_property
    def zero_losses(self) -> Callable[[], Arrays]:
        """Makes losses of zero by name: `[instances]` each."""
        sharding, instances = NamedSharding(self.mesh, P(self.axes.data)), device_count_along(self.mesh, self.axes.data)
        return jax.jit(lambda: {name: jnp.zeros(instances) for name in self.loss_names}, out_shardings=sharding)

    # ------------------------------------------------------------------ bodies: one device's view

    def _microbatch(self, batch: Microbatches, index: jax.Array) -> dict[str, Arrays]:
        rows = jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, index, keepdims=False), batch.arrays)
        for module, names in self.definition.batch_arrays.items():
            if "seed_and_step" in names:
                rows[module] = {**rows[module], "seed_and_step": batch.seed_and_step}
        return rows

    def _apply(self, parameters: Tree, inputs: Arrays, microbatch: dict[str, Arrays]) -> tuple[Arrays, Arrays, Arrays]:
        outputs, losses, judged = self.definition.apply(parameters, inputs, microbatch, self.axes)
        return outputs, make_varying(losses, self.axes.data), judged

    def _evaluate(self, parameters: Tree, inputs: Arrays, batch: Microbatches, index: jax.Array) -> tuple:
        outputs, losses, judged = self._apply(parameters, inputs, self._microbatch(batch, index))
        return outputs, {name: loss[None] for name, loss in losses.items()}, judged

    def _forward_only(
        self, parameters: Tree, inputs: Arrays, batch: Microbatches, index: jax.Array, losses: Arrays
    ) -> tuple:
        outputs, more, _ = self._apply(parameters, inputs, self._microbatch(batch, index))
        return outputs, [], _added(losses, more)

    def _operands_of(self, parameters: Tree, inputs: Arrays) -> tuple[tuple[Tree, Arrays], tuple[Tree, Arrays]]:
        """What is differentiated, and what is not; all weights vary over data.

        Trained ones, so that their gradients stay unreduced; frozen ones, so that no copy is made where they meet
        activations, which would no longer be recognised as at hand.
        """
        parameters = make_varying(parameters, self.axes.data)
        trained = {key: tree for key, tree in parameters.items() if key in self.definition.trained_keys}
        frozen = {key: tree for key, tree in parameters.items() if key not in self.definition.trained_keys}
        wanted = {name: x for name, x in inputs.items() if name in self.differentiated_inputs}
        given = {name: x for name, x in inputs.items() if name not in self.differentiated_inputs}
        return (trained, wanted), (frozen, given)

    def _differentiate(self, parameters: Tree, inputs: Arrays, batch: Microbatches, index: jax.Array) -> tuple:
        microbatch = self._microbatch(batch, index)
        moving, fixed = self._operands_of(parameters, inputs)

        def of(trained: Tree, wanted: Arrays) -> tuple[Arrays, Arrays]:
            outputs, losses, _ = self._apply({**trained, **fixed[0]}, {**wanted, **fixed[1]}, microbatch)
            return outputs, losses

        (outputs, losses), vjp = jax.vjp(of, *moving)
        residuals, closure = split_vjp(vjp, jax.tree.leaves((moving, fixed, microbatch)))
        return outputs, losses, residuals, closure

    def _forward(
        self, parameters: Tree, inputs: Arrays, batch: Microbatches, index: jax.Array, losses: Arrays
    ) -> tuple:
        outputs, more, residuals, _ = self._differentiate(parameters, inputs, batch, index)
        return outputs, [leaf[None] for leaf in residuals], _added(losses, more)

    def _backward(
        self,
        parameters: Tree,
        inputs: Arrays,
        batch: Microbatches,
        index: jax.Array,
        residuals: list[jax.Array],
        outputs: Arrays,
        gradients: Tree,
    ) -> tuple[Arrays, Tree]:
        at_hand = jax.tree.leaves((*self._operands_of(parameters, inputs), self._microbatch(batch, index)))
        vjp = self.closure.restore([leaf[0] for leaf in residuals], at_hand)
        seeds = make_varying({name: jnp.ones(()) for name in self.loss_names}, self.axes.data)
        more, wanted = vjp((outputs, seeds))
        add = functools.partial(jax.tree.map, lambda total, new: total + new.astype(jnp.float32)[None])
        return wanted, add(gradients, more)


def _added(totals: Arrays, more: Arrays) -> Arrays:
    """An instance's losses of all microbatches so far."""
    return {name: total + more[name][None] for name, total in totals.items()}
