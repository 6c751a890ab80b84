"""From stages on their devices to an executor: stage programs, channels, tied parameters, schedules.

Every function here is pure: it takes the results of earlier functions, and changes none of them.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from data.packing.batch_spec import BatchSpec
from data.packing.phases.phase_rows import PhaseRows
from mmjax.models.structure.parameters import place_host_array
from mmjax.training.engine.channels import (
    ChannelEndpoints,
    RowsOfCapacities,
    find_channels,
    find_exchanges,
    make_channels,
    of_capacity,
)
from mmjax.training.engine.optimizers.layer_optimizer import LayerOptimizer
from mmjax.training.engine.optimizers.optimizer import (
    make_stage_update,
    squared_norm_and_losses,
    stage_optimizer_shardings,
)
from mmjax.training.engine.optimizers.part_optimizers import RunHyperparameters
from mmjax.training.engine.pipeline_functions import make_pipeline_definition
from mmjax.training.engine.placement import PlacedStage
from mmjax.training.engine.stage_functions import make_stage_function
from mmjax.training.engine.stage_layouts import piece_key
from mmjax.training.engine.tied_parameters import find_tied_parameters, make_tied_parameter
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.bundled_ops import check_device_order
from sharding.runtime.executor import Executor
from sharding.runtime.global_reduction import GlobalReduction
from sharding.runtime.pipeline import ExecutableStage, PlacedHyperparameters, ReplicaPrograms
from sharding.runtime.replica_meshes import is_local_mesh
from sharding.runtime.stages.compiled_pipeline import CompiledPipeline
from sharding.runtime.stages.definition import Microbatches, StageDefinition
from sharding.runtime.stages.mesh_programs import MeshPrograms
from sharding.runtime.stages.named_programs import named_jit
from sharding.runtime.stages.programs import StagePrograms
from sharding.schedules.named.build import build_evaluation_schedule, build_schedule
from sharding.schedules.ops import OpGraph

Stages = Mapping[StageId, PlacedStage]


def build_executor(
    resolved: ResolvedPlan,
    stages: Stages,
    batch_spec: BatchSpec,
    optimizer: LayerOptimizer,
    hyperparameters: RunHyperparameters,
    transport: str,
    devices: Sequence[jax.Device],
    phases: Mapping[str, PhaseRows],
) -> Executor:
    """Builds the executor of a plan, with the schedules of this process's devices.

    Args:
        resolved: The plan.
        stages: Its stages on their devices, each after the stages that feed it.
        batch_spec: Shapes and dtypes of a global batch, its items dealt over the rows of the phases.
        optimizer: The optimizer of every layer that trains.
        hyperparameters: Hyperparameters that the optimizer takes as arguments.
        transport: Transport of hops (`EngineSettings.transport`).
        devices: The devices that the plan's numbers index.
        phases: The modules with rows of their own.
    """
    plan, graph = resolved.plan, resolved.graph
    channels, tied = find_channels(stages), find_tied_parameters(stages)
    sharing_stages = tuple(dict.fromkeys((parameter.owner, parameter.borrower) for parameter in tied))
    trained_stages = frozenset(stage_id for stage_id, stage in stages.items() if stage.trained_keys)
    training = build_schedule(resolved, trained_stages, sharing_stages)
    evaluation = build_evaluation_schedule(resolved, sharing_stages)
    rows = batch_spec[graph.backbone.name]["tokens"].shape[0] // plan.microbatches
    exchanges = find_exchanges(phases, graph.backbone.name, rows)
    programs = build_stage_programs(
        stages,
        channels,
        batch_spec,
        training.op_graph,
        phases,
        exchanges,
    )
    global_reduction = GlobalReduction(
        plan_devices(plan, devices),
        {stage_id: stage.mesh for stage_id, stage in stages.items()},
        {stage_id: pipeline_replicas[0].largest.loss_names for stage_id, pipeline_replicas in programs.items()},
    )
    local = [number for number, device in enumerate(devices) if device.process_index == jax.process_index()]
    executable = {
        stage_id: executable_stage(stage, programs[stage_id], optimizer) for stage_id, stage in stages.items()
    }
    check_device_order(training, executable)
    return Executor(
        stages=executable,
        channels=tuple(
            channel
            for endpoints in channels
            for channel in make_channels(endpoints, programs, training.op_graph, transport, endpoints.name in exchanges)
        ),
        tied_parameters=tuple(make_tied_parameter(parameter, stages, transport) for parameter in tied),
        global_reduction=global_reduction,
        training_schedule=training.restricted_to(local),
        evaluation_schedule=evaluation.restricted_to(local),
        hyperparameters=place_hyperparameters(hyperparameters, stages, global_reduction),
    )


def place_hyperparameters(
    hyperparameters: RunHyperparameters, stages: Stages, global_reduction: GlobalReduction
) -> PlacedHyperparameters:
    """Places the hyperparameters on the devices of this process: `[trained keys, numbers]` for each trained stage."""

    def place(stage: PlacedStage) -> jax.Array:
        rows = [hyperparameters.by_piece[piece_key(key)] for key in sorted(stage.trained_keys)]
        return place_host_array(np.array(rows, np.float32), NamedSharding(stage.mesh, P()))

    return PlacedHyperparameters(
        global_reduction.max_norm(hyperparameters.max_grad_norm or None),
        {
            stage_id: place(stage)
            for stage_id, stage in stages.items()
            if stage.trained_keys and is_local_mesh(stage.mesh)
        },
    )


def plan_devices(plan: Plan, devices: Sequence[jax.Device]) -> list[jax.Device]:
    """The devices that a plan uses, each once, by number."""
    return [devices[number] for number in sorted({number for unit in plan.units for number in unit.devices})]


def build_stage_programs(
    stages: Stages,
    channels: Sequence[ChannelEndpoints],
    batch_spec: BatchSpec,
    op_graph: OpGraph,
    phases: Mapping[str, PhaseRows],
    exchanges: Mapping[str, RowsOfCapacities],
) -> dict[StageId, tuple[ReplicaPrograms, ...]]:
    """Makes forward, backward and evaluation of every stage, for each pipeline replica and capacity of its rows.

    Each stage's input shapes are output shapes of earlier ones.
    """
    sources = {channel.name: channel.source for channel in channels}
    backward_stages = op_graph.backward_stages

    def input_shape(name: str, capacity: int) -> jax.ShapeDtypeStruct:
        sent = of_capacity(programs[sources[name]][0].by_capacity, capacity).output_shapes[name]
        if name not in exchanges:
            return sent
        return jax.ShapeDtypeStruct((*of_capacity(exchanges[name], capacity), *sent.shape[2:]), sent.dtype)

    def make_programs(
        stage_id: StageId, pipeline_replica: int, capacity: int, fractions: tuple[Fraction, ...]
    ) -> MeshPrograms:
        stage, layout = stages[stage_id], stages[stage_id].layout
        taken = len(op_graph.stage_graph.microbatches_of(stage_id[0], pipeline_replica, op_graph.microbatches))
        batch_shapes = _microbatch_shapes(layout.batch_arrays(), batch_spec, op_graph.microbatches, taken)
        arguments: dict[str, Any] = {
            "mesh": stage.meshes.by_pipeline_replica[pipeline_replica],
            "axes": stage.axes,
            "input_shapes": {name: input_shape(name, capacity) for name in layout.inputs},
            "batch_shapes": batch_shapes,
            "differentiated_inputs": frozenset(name for name in layout.inputs if sources[name] in backward_stages),
            "has_backward": stage_id in backward_stages,
        }
        if stage.unit.is_compiled:
            return CompiledPipeline(make_pipeline_definition(stage), **arguments)
        return StagePrograms(
            _stage_definition(stage_id, stage),
            **arguments,
            splits_backward=stage_id in op_graph.split_stages,
            row_lengths=_row_lengths(batch_shapes, fractions[capacity]),
            name_suffix=f"_capacity{capacity}" if len(fractions) > 1 else "",
        )

    programs: dict[StageId, tuple[ReplicaPrograms, ...]] = {}
    for stage_id, stage in stages.items():
        fractions = next(
            (
                phases[run.module.name].capacity_fractions
                for run in stage.layout.piece_runs
                if run.module.name in phases
            ),
            (Fraction(1),),
        )
        programs[stage_id] = tuple(
            ReplicaPrograms(
                tuple(
                    make_programs(stage_id, pipeline_replica, capacity, fractions) for capacity in range(len(fractions))
                )
            )
            for pipeline_replica in range(len(stage.meshes.by_pipeline_replica))
        )
    return programs


def _row_lengths(batch_shapes: Microbatches, share: Fraction) -> dict[str, dict[str, int]]:
    """Returns the length s of batch arrays `[m, r, s, ...]` that is read, where the capacity is a share of the rows."""
    if share == 1:
        return {}
    return {
        module: {name: int(array.shape[2] * share) for name, array in arrays.items()}
        for module, arrays in batch_shapes.arrays.items()
    }


def _stage_definition(stage_id: StageId, stage: PlacedStage) -> StageDefinition:
    layout = stage.layout
    return StageDefinition(
        stage_id=stage_id,
        apply=make_stage_function(layout, stage.master_weights.compute_specs),
        partition_specs=stage.master_weights.compute_specs,
        shapes=stage.master_weights.compute_shapes,
        trained_keys=stage.trained_keys,
        batch_arrays=layout.batch_arrays(),
        input_channels=layout.input_modules,
        output_channels=layout.output_modules,
        context_keys=layout.context_keys,
        sequence_sharded_channels=layout.sequence_sharded_channels,
    )


def _microbatch_shapes(
    names: Mapping[str, tuple[str, ...]], batch_spec: BatchSpec, microbatches: int, taken: int
) -> Microbatches:
    """Reshapes the batch arrays that a pipeline replica of a stage reads: [n, ...] -> [taken, n / m, ...]."""

    def microbatched(module: str, name: str) -> jax.ShapeDtypeStruct:
        rows, *row_shape = batch_spec[module][name].shape
        return jax.ShapeDtypeStruct((taken, rows // microbatches, *row_shape), batch_spec[module][name].dtype)

    arrays = {
        module: {name: microbatched(module, name) for name in module_names if name != "seed_and_step"}
        for module, module_names in names.items()
    }
    return Microbatches(arrays, jax.ShapeDtypeStruct((2,), jnp.int32))


def executable_stage(
    stage: PlacedStage, pipeline_replicas: tuple[ReplicaPrograms, ...], optimizer: LayerOptimizer
) -> ExecutableStage:
    """Joins a stage's programs with the programs that gather its weights, and reduce and apply its gradients."""
    masters, trained_keys = stage.master_weights, stage.trained_keys
    replicated = NamedSharding(stage.mesh, P())
    stage_id = masters.stage_id
    loss_and_norm = named_jit(squared_norm_and_losses, stage_id, "loss_and_norm", out_shardings=replicated)
    forward_only = ExecutableStage(
        meshes=stage.meshes,
        pipeline_replicas=pipeline_replicas,
        gather=masters.gather,
        reduce=None,
        loss_and_norm=loss_and_norm,
        update=None,
    )
    if not trained_keys:
        return forward_only
    shardings = (
        {key: masters.shardings[key] for key in sorted(trained_keys)},
        stage_optimizer_shardings(optimizer, masters, trained_keys),
    )
    update = named_jit(
        make_stage_update(optimizer, {key: piece_key(key) for key in trained_keys}, shardings),
        stage_id,
        "update",
        out_shardings=shardings,
        donate_argnums=(0, 1),
    )
    return dataclasses.replace(forward_only, reduce=masters.make_reduce(trained_keys), update=update)
