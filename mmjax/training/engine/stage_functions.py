"""The layers of a stage as one function of a device's shards, which the stage's programs compile.

Activation recomputation is applied here: every layer is wrapped as its policy says (`RECOMPUTATION_POLICIES`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from mmjax.models.layers.context_parallel import all_gather_positions, local_positions
from mmjax.models.layers.lora import join_adapters
from mmjax.models.layers.tensor_parallel import MATMUL_CHECKPOINT_NAME, SMALL_RESULT_CHECKPOINT_NAME
from mmjax.models.structure.module import (
    BALANCING_LOSS,
    LayerOutput,
    ModuleOutput,
    auxiliary_loss_name,
    module_losses,
)
from mmjax.models.structure.parameters import piece_definition
from mmjax.training.engine.fully_sharded import gather_weights_of
from mmjax.training.engine.stage_layouts import PieceRun, StageLayout, piece_key
from pallas_kernels.collective_matmul import gather_sequence, split_sequence
from pallas_kernels.varying import make_varying
from sharding.axes import Axes
from sharding.plans.resolved.stage_axes import row_reshard
from sharding.runtime.stages.definition import StageOutput
from sharding.runtime.stages.host_memory import HOST_MEMORY
from sharding.runtime.stages.weight_specs import is_partition_spec
from sharding.specs.layers.layer import RecomputePolicy
from sharding.trees import Tree, get_leaf, set_leaf

Arrays = dict[str, jax.Array]

_SAVE_SMALL_RESULTS = jax.checkpoint_policies.save_only_these_names(SMALL_RESULT_CHECKPOINT_NAME)
_SAVE_MATMUL_RESULTS = jax.checkpoint_policies.save_only_these_names(
    SMALL_RESULT_CHECKPOINT_NAME, MATMUL_CHECKPOINT_NAME
)
_OFFLOAD_MATMUL_RESULTS = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[SMALL_RESULT_CHECKPOINT_NAME],
    names_which_can_be_offloaded=[MATMUL_CHECKPOINT_NAME],
    offload_src="device",
    offload_dst=HOST_MEMORY,
)

RECOMPUTATION_POLICIES: dict[RecomputePolicy, Callable[[Callable], Callable]] = {
    "none": lambda layer: layer,
    # The results of matmuls and convolutions with weights are saved; attention is computed again (arXiv 2205.05198).
    "selective": lambda layer: jax.checkpoint(layer, policy=_SAVE_MATMUL_RESULTS),
    # The same results are saved in host memory between forward and backward.
    "offload": lambda layer: jax.checkpoint(layer, policy=_OFFLOAD_MATMUL_RESULTS),
    "full": lambda layer: jax.checkpoint(layer, policy=_SAVE_SMALL_RESULTS),
}
"""Activation recomputation of a layer by name: what the forward saves and the backward computes again."""


def make_stage_function(layout: StageLayout, specs: Tree) -> Callable:
    """Makes the function of one device's shards that a stage computes (`StageDefinition.apply`).

    Args:
        layout: The layers of the stage.
        specs: Specs of all its compute weights, which show which weights are fully sharded.

    Returns:
        `(parameters, inputs, batch, axes) -> StageOutput`: inputs and outputs by channel, with the rows of a microbatch
        first; axes by module; each loss, by name, a sum over the local rows.
    """

    def apply(parameters: Tree, inputs: Arrays, batch: Mapping[str, Arrays], axes: Mapping[str, Axes]) -> StageOutput:
        output = run_pieces(layout, layout.piece_runs, (parameters, specs), inputs, batch, axes)
        return output._replace(outputs={name: output.outputs[name] for name in layout.outputs})

    return apply


def run_pieces(
    layout: StageLayout,
    runs: Sequence[PieceRun],
    parameters_and_specs: tuple[Tree, Tree],
    inputs: Arrays,
    batch: Mapping[str, Arrays],
    axes: Mapping[str, Axes],
    first_layer: int | jax.Array = 0,
) -> StageOutput:
    """Runs some pieces of a stage, one after another.

    Args:
        layout: The layers of the stage.
        runs: The runs of layers to compute.
        parameters_and_specs: The stage's compute weights, and their specs.
        inputs: Activations by channel.
        batch: Arrays of a microbatch, by module and name.
        axes: Mesh axes by module.
        first_layer: Added to the numbers of layers.

    Returns:
        Inputs and outputs by channel, losses, and metrics.
    """
    channels, losses, metrics = dict(inputs), {}, {}
    shared_inputs: dict[str, Any] = {}
    for run in runs:
        if run.piece.adapter_of:
            continue  # its parameters are joined to the parameters of the piece that it adapts
        module = run.module.name
        own_axes = axes[module]
        x = _reshard_positions(run, _piece_input(run, channels), own_axes)
        piece_axes = own_axes if run.piece.sequence_parallel else own_axes.of_whole_rows
        stack = piece_key(run.parameter_key)
        if stack not in shared_inputs:
            shared_inputs[stack] = _shared_inputs(run, batch.get(module, {}), piece_axes)
        shared = (shared_inputs[stack], first_layer)
        output = _apply_layers(layout, run, parameters_and_specs, x, shared, piece_axes)
        if isinstance(output, LayerOutput):
            name = auxiliary_loss_name(module, BALANCING_LOSS)
            losses[name] = losses[name] + output.auxiliary_loss if name in losses else output.auxiliary_loss
            output = output.x
        if isinstance(output, ModuleOutput):
            for target, array in output.activations.items():
                channel = f"{module}>{target}"
                is_sent = channel in layout.outputs
                channels[channel] = array if is_sent else _reshard_rows(array, own_axes, axes[target])
            metrics |= {f"{module}/{name}": array for name, array in output.auxiliary_metrics.items()}
            losses |= module_losses(module, output)
        else:
            channels[run.output_channel] = output
    return StageOutput(channels, losses, metrics)


def _piece_input(run: PieceRun, channels: Arrays) -> Any:
    """Returns the input of a piece: outputs of other modules by name for a module's first piece, else activations."""
    module = run.module.name
    if run.piece is run.module.pieces[0]:
        return {source: channels[f"{source}>{module}"] for source in run.module.inputs}
    inner_channels = [name for name in channels if name.startswith(f"{module}#")]
    return channels.pop(inner_channels[-1])


def _reshard_rows(x: jax.Array, sender: Axes, receiver: Axes) -> jax.Array:
    """Reshards activations `[r, ...]` to the next module's rows on this device; they are alike on its tensor ranks.

    The gradient is gathered where rows are split, and split where they are gathered.
    """
    gather, split = row_reshard(sender, receiver)
    x = gather_sequence(make_varying(x, gather), gather, axis=0) if gather else x
    return split_sequence(x, split, axis=0) if split else x


def _reshard_positions(run: PieceRun, x: Any, axes: Axes) -> Any:
    """Reshards activations to the positions that a piece takes: the whole row's, or this rank's.

    If the previous piece was sharded differently, positions are all-gathered, [r, q, d] -> [r, s, d], or sliced.
    """
    previous = run.previous_piece
    if previous is None or previous.sequence_parallel == run.piece.sequence_parallel:
        return x
    return local_positions(x, axes) if run.piece.sequence_parallel else all_gather_positions(x, axes)


def _shared_inputs(run: PieceRun, batch: Arrays, axes: Axes) -> Any:
    """Computes the shared inputs of all layers of a piece from the batch, once for all its runs on the stage."""
    return run.piece.shared_inputs(batch, axes) if run.piece.shared_inputs else batch


def _apply_layers(
    layout: StageLayout,
    run: PieceRun,
    parameters_and_specs: tuple[Tree, Tree],
    x: Any,
    shared_and_first: tuple[Any, int | jax.Array],
    axes: Axes,
) -> Any:
    """Runs a piece, or a run of a stack's layers by `lax.scan` over their stacked parameters.

    The shared inputs come with an offset that is added to the numbers of the layers.
    """
    shared, first_layer = shared_and_first
    definition = piece_definition(run.piece)
    own_parameters, own_specs = (_piece_parameters(layout, run, tree) for tree in parameters_and_specs)
    layer = RECOMPUTATION_POLICIES[run.recompute](lambda weights, x, shared: definition.apply(weights, x, shared, axes))
    if not run.piece.layers:
        return gather_weights_of(layer, own_specs, axes)(own_parameters, x, shared)
    layer_specs = jax.tree.map(lambda spec: P(*spec[1:]), own_specs, is_leaf=is_partition_spec)
    layer = gather_weights_of(layer, layer_specs, axes)

    def scan_layer(x: jax.Array, weights_and_number: tuple[Tree, jax.Array]) -> tuple[jax.Array, jax.Array | None]:
        weights, number = weights_and_number
        output = layer(weights, x, run.piece.inputs_of_layer(shared, number))
        return (output.x, output.auxiliary_loss) if isinstance(output, LayerOutput) else (output, None)

    numbers = first_layer + jnp.arange(run.first, run.last)
    x, auxiliary_losses = jax.lax.scan(scan_layer, x, (own_parameters, numbers))  # [r, s, d], [l]
    return x if auxiliary_losses is None else LayerOutput(x, jnp.sum(auxiliary_losses))


def _piece_parameters(layout: StageLayout, run: PieceRun, parameters: Tree) -> Tree:
    """Collects the parameters (or specs) of a piece: its own, its adapters', and tied ones of pieces of this stage."""
    module = run.module
    adapters = parameters.get(run.key_of(module.adapter_piece(run.piece.name)), {})
    own_parameters = join_adapters(parameters[run.parameter_key], adapters)
    for path, owner, owner_path in run.piece.tied_parameters:
        if layout.holds_piece(module, owner):
            leaf = get_leaf(parameters[f"{module.name}/{owner}"], owner_path)
            own_parameters = set_leaf(own_parameters, path, leaf)
    return own_parameters
