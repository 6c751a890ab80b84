"""Definitions of stages: the functions that they compute, and the arguments and results of their programs.

The engine makes definitions from a plan and its modules.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec as P

from sharding.axes import Axes
from sharding.plans.resolved.stage_graph import StageId
from sharding.trees import Tree

Arrays = dict[str, jax.Array]


def module_of(name: str) -> str:
    """The module of parameters (`module/piece`), a loss (`module` or `module/name`) or a metric (`module/name`)."""
    return name.partition("/")[0]


class StageOutput(NamedTuple):
    """The results of a stage for one microbatch: arrays, or their shapes or specs.

    Attributes:
        outputs: Activations by channel, rows first.
        losses: By name (`module_of`): inside `shard_map` a scalar, summed over the local rows; outside `[replicas]`.
        auxiliary_metrics: Arrays for evaluation by name (`module_of`), rows first.
    """

    outputs: dict[str, Any]
    losses: Any
    auxiliary_metrics: Any


class ForwardResult(NamedTuple):
    """The results of a forward program: arrays, or their shapes or specs.

    Attributes:
        outputs: Activations by channel.
        residuals: Arrays that the backward program needs; empty where there is none.
        losses: `[replicas]` by name, summed over the microbatches so far.
    """

    outputs: dict[str, Any]
    residuals: list[Any]
    losses: Any


class BackwardResult(NamedTuple):
    """The results of a backward program: arrays, or their shapes or specs.

    Attributes:
        input_gradients: By channel, for the channels whose gradient is needed.
        parameter_gradients: Unreduced, float32, summed over the microbatches so far: `{key: {...}}`, replicas first.
    """

    input_gradients: dict[str, Any]
    parameter_gradients: Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageInterface:
    """The parameters of a stage, and the arrays that it reads and sends.

    Attributes:
        stage_id: (unit, stage).
        partition_specs: Specs of all parameters in stacked form. They use their module's tensor axes and, for experts,
            the expert axes, which are some of its data axes; all else is replicated over its data axes.
        shapes: Shape and compute precision of all parameters in stacked form.
        trained_keys: Top-level keys of the parameters that get gradients, `module/piece`.
        batch_arrays: Names of the batch arrays by module.
        input_channels, output_channels: The channels that enter and leave, each with its module in this stage: the one
            that takes its activations, or sends them.
        context_keys: Top-level keys of the parameters of layers that take this context-parallel rank's positions.
        sequence_sharded_channels: Channels whose dimension 1, the positions, is sharded over `Axes.context` and
            `Axes.sequence`.
    """

    stage_id: StageId
    partition_specs: Tree
    shapes: Tree
    trained_keys: frozenset[str]
    batch_arrays: Mapping[str, tuple[str, ...]]
    input_channels: Mapping[str, str]
    output_channels: Mapping[str, str]
    context_keys: frozenset[str] = frozenset()
    sequence_sharded_channels: frozenset[str] = frozenset()

    def axes_of_layers(self, key: str, axes: Mapping[str, Axes]) -> Axes:
        """The axes that the layers under a key of the parameters compute with, given the axes of each module."""
        module_axes = axes[module_of(key)]
        return module_axes if key in self.context_keys else module_axes.of_whole_rows

    def channel_specs(self, axes: Mapping[str, Axes]) -> dict[str, P]:
        """The specs of all channels' activations `[r, s, ...]`, by the axes of each one's module."""

        def spec(name: str, axes: Axes) -> P:
            positions = (*axes.context, *axes.sequence) if name in self.sequence_sharded_channels else ()
            return P(axes.data, positions) if positions else P(axes.data)

        channels = {**self.input_channels, **self.output_channels}
        return {name: spec(name, axes[module]) for name, module in channels.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageDefinition(StageInterface):
    """The computation of a stage, as a plain function of one device's shards.

    Attributes:
        apply: `(parameters, inputs, batch, axes) -> StageOutput`, or a tuple of its fields; axes by module. Every array
            of activations has the rows first; each loss is a sum over the local rows of its module.
    """

    apply: Callable[[Tree, Arrays, Mapping[str, Arrays], Mapping[str, Axes]], tuple[Arrays, Arrays, Arrays]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineDefinition(StageInterface):
    """The computation of a whole unit whose pipeline is one program, as plain functions of one device's shards.

    Its only module has pieces before a stack, the stack, and pieces behind it. Pipeline ranks divide the vocabulary of
    the pieces around the stack (`Axes.around_stack`), and all run these for the same microbatch at once.

    Attributes:
        ranks: Pipeline ranks.
        chunks: Chunks of the stack on each rank.
        chunk_layers: Layers of a chunk.
        embed: `(parameters, inputs, batch, axes) -> x`: what precedes the stack, with this rank's positions.
        run_layers: `(parameters, x, batch, axes, first layer) -> (x, losses)`: a chunk, whose parameters are stacked.
        head: `(parameters, x, batch, axes) -> StageOutput`: what follows the stack.
        embed_keys, stack_keys, head_keys: Keys of the parameters that each reads; a tied one is in two.
    """

    ranks: int
    chunks: int
    chunk_layers: int
    embed: Callable[[Tree, Arrays, Mapping[str, Arrays], Mapping[str, Axes]], jax.Array]
    run_layers: Callable[
        [Tree, jax.Array, Mapping[str, Arrays], Mapping[str, Axes], jax.Array], tuple[jax.Array, Arrays]
    ]
    head: Callable[[Tree, jax.Array, Mapping[str, Arrays], Mapping[str, Axes]], StageOutput]
    embed_keys: frozenset[str]
    stack_keys: frozenset[str]
    head_keys: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Microbatches:
    """The arrays of a global batch that a stage reads, on its submesh: arrays, or their shapes or specs.

    Attributes:
        arrays: By module and name, `[m, r, ...]`: microbatches first, rows split over the module's data axes.
        seed_and_step: `[2]` int32, from which all random numbers of the step are derived.
    """

    arrays: dict[str, dict[str, Any]]
    seed_and_step: Any


jax.tree_util.register_dataclass(Microbatches, ["arrays", "seed_and_step"], [])
