"""The layers of a unit whose pipeline is one program, as plain functions of one device's shards.

`build.py` makes a `CompiledPipeline` of them; stages of dispatched units are in `stage_functions.py`.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import PartitionSpec as P

from mmjax.models.layers.tensor_parallel import all_gather_sequence, sequence_positions
from mmjax.training.engine.fully_sharded import gather_weights
from mmjax.training.engine.placement import PlacedStage
from mmjax.training.engine.stage_functions import Arrays, run_pieces
from mmjax.training.engine.stage_layouts import PieceRun, StageLayout
from sharding.axes import Axes
from sharding.runtime.stages.definition import PipelineDefinition, StageOutput
from sharding.runtime.stages.weight_specs import is_partition_spec
from sharding.trees import Tree

_AxesByModule = Mapping[str, Axes]


def make_pipeline_definition(stage: PlacedStage) -> PipelineDefinition:
    """Makes the definition of a compiled unit, whose only stage has all its layers.

    The backward of the pieces around the stack directly follows a forward of them, so that nothing is recomputed by a
    policy, and fully sharded weights are kept from one to the other.
    """
    unit, layout, specs = stage.unit, stage.layout, stage.master_weights.compute_specs
    runs = layout.piece_runs
    numbers = [number for number, run in enumerate(runs) if run.piece.layers]
    module, stack = runs[0].module.name, runs[numbers[0]]
    before, stack_runs, behind = runs[: numbers[0]], runs[numbers[0] : numbers[-1] + 1], runs[numbers[-1] + 1 :]
    before, behind = (tuple(dataclasses.replace(run, recompute="none") for run in side) for side in (before, behind))
    chunk = tuple(dataclasses.replace(run, last=unit.layers[0]) for run in stack_runs)
    entering = next(run for run in reversed(before) if not run.piece.adapter_of).output_channel
    leaving = stack.output_channel

    def embed(parameters: Tree, inputs: Arrays, batch: Mapping[str, Arrays], axes: _AxesByModule) -> jax.Array:
        output = _run_around_stack(layout, before, (parameters, specs), inputs, batch, axes)
        return sequence_positions(output.outputs[entering], axes[module])

    def run_layers(
        parameters: Tree, x: jax.Array, batch: Mapping[str, Arrays], axes: _AxesByModule, first_layer: jax.Array
    ) -> tuple[jax.Array, Arrays]:
        output = run_pieces(layout, chunk, (parameters, specs), {entering: x}, batch, axes, first_layer)
        return output.outputs[chunk[0].output_channel], output.losses

    def head(parameters: Tree, x: jax.Array, batch: Mapping[str, Arrays], axes: _AxesByModule) -> StageOutput:
        x = all_gather_sequence(x, axes[module])
        output = _run_around_stack(layout, behind, (parameters, specs), {leaving: x}, batch, axes)
        return output._replace(outputs={name: output.outputs[name] for name in layout.outputs})

    tied = {f"{module}/{owner}" for run in behind for _, owner, _ in run.piece.tied_parameters}
    return PipelineDefinition(
        stage_id=layout.stage_id,
        ranks=unit.pp,
        chunks=unit.parallelism.chunks,
        chunk_layers=unit.layers[0],
        embed=embed,
        run_layers=run_layers,
        head=head,
        embed_keys=_keys(before),
        stack_keys=_keys(stack_runs),
        head_keys=_keys(behind) | tied,
        partition_specs=specs,
        shapes=stage.master_weights.compute_shapes,
        trained_keys=stage.trained_keys,
        batch_arrays=layout.batch_arrays(),
        input_channels=layout.input_modules,
        output_channels=layout.output_modules,
        context_keys=layout.context_keys,
        sequence_sharded_channels=layout.sequence_sharded_channels,
    )


def _keys(runs: Sequence[PieceRun]) -> frozenset[str]:
    return frozenset(run.parameter_key for run in runs)


def _run_around_stack(
    layout: StageLayout,
    runs: Sequence[PieceRun],
    parameters_and_specs: tuple[Tree, Tree],
    inputs: Arrays,
    batch: Mapping[str, Arrays],
    axes: _AxesByModule,
) -> StageOutput:
    """Runs the pieces before or behind the stack (`run_pieces`), given some parameters and the specs of all."""
    parameters, specs = parameters_and_specs
    axes = {module: module_axes.around_stack for module, module_axes in axes.items()}
    whole = gather_weights(parameters, {key: specs[key] for key in parameters}, axes[runs[0].module.name])
    whole_specs = jax.tree.map(lambda _: P(), specs, is_leaf=is_partition_spec)
    return run_pieces(layout, runs, (whole, whole_specs), inputs, batch, axes)
