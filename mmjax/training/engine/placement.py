"""The placement of a model: for every stage of a plan its layers, its submesh and its master weights.

The first step of the engine's building; all later ones read the stages that it makes.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from configs.architectures import ModelConfig
from configs.optimizer import StateMemory
from data.packing.batch_spec import BatchSpec
from data.packing.phases.phase_rows import PhaseRows
from mmjax.models.structure.module import Module
from mmjax.training.engine.stage_layouts import StageLayout, layer_stack_shapes, make_stage_layouts
from sharding.axes import Axes
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import StageId
from sharding.plans.unit_checks import check_rank_positions, check_row_chunks
from sharding.plans.unit_plan import UnitPlan
from sharding.runtime.meshes import module_axes, stage_meshes
from sharding.runtime.replica_meshes import ReplicaMeshes
from sharding.runtime.stages.host_memory import HOST_MEMORY
from sharding.runtime.stages.master_weights import LayerStackShapes, StageMasterWeights


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacedStage:
    """One stage of a plan on its devices.

    Attributes:
        unit: Its unit.
        layout: Its pieces and layers, and the channels that enter and leave it.
        meshes: The submesh of each pipeline replica of its unit, and the mesh of all of them.
        axes: `Axes` by module of its unit: the mesh axes of each kind of parallelism.
        master_weights: Shardings of its master weights, and the programs to and from them.
        trained_keys: Keys (`PieceRun.parameter_key`) of its parameters that train.
    """

    unit: UnitPlan
    layout: StageLayout
    meshes: ReplicaMeshes
    axes: Mapping[str, Axes]
    master_weights: StageMasterWeights
    trained_keys: frozenset[str]

    @property
    def mesh(self) -> Mesh:
        """The mesh of its weights, gradients and optimizer state: the mesh of all pipeline replicas."""
        return self.meshes.all_pipeline_replicas

    def rows_sharding(self, module: str, pipeline_replica: int) -> NamedSharding:
        """The sharding of a module's batch arrays `[m, r, ...]` in a pipeline replica."""
        return NamedSharding(self.meshes.by_pipeline_replica[pipeline_replica], P(None, self.axes[module].data))


def place_stages(
    config: ModelConfig,
    modules: tuple[Module, ...],
    resolved: ResolvedPlan,
    devices: Sequence[jax.Device],
    state_memory: StateMemory = "device",
) -> dict[StageId, PlacedStage]:
    """Places every stage of a plan on its devices; each comes after the stages that feed it.

    Args:
        config: The model; its dtype is the dtype of the compute weights.
        modules: The model's modules of pieces, which compute.
        resolved: The placement of the modules.
        devices: The devices that the plan's numbers index.
        state_memory: Where master weights lie (`OptimizerConfig.state_memory`).
    """
    plan = resolved.plan
    meshes_of = stage_meshes(plan, list(devices))
    axes = {unit.name: module_axes(unit, meshes_of[unit.name, 0]) for unit in plan.units}
    stages, units = {}, {unit.name: unit for unit in plan.units}
    for stage_id, layout in make_stage_layouts(resolved, modules).items():
        meshes, stage_axes = meshes_of[stage_id], axes[stage_id[0]]
        stages[stage_id] = PlacedStage(
            unit=units[stage_id[0]],
            layout=layout,
            meshes=meshes,
            axes=stage_axes,
            master_weights=StageMasterWeights(
                _in_pipeline_order(layer_stack_shapes(layout), units[stage_id[0]]),
                meshes.all_pipeline_replicas,
                {module: meshes.axes_of_all(own_axes) for module, own_axes in stage_axes.items()},
                jnp.dtype(config.dtype),
                stage_id,
                in_host_memory=state_memory == "host",
            ),
            trained_keys=frozenset(
                run.parameter_key for run in layout.piece_runs if run.piece.part in resolved.trained_parts
            ),
        )
    return stages


def _in_pipeline_order(stacks: dict[str, LayerStackShapes], unit: UnitPlan) -> dict[str, LayerStackShapes]:
    """Orders the stacks of a stage; a whole pipeline's stacks have the layers of each rank together, chunk by chunk."""
    if not unit.is_compiled:
        return stacks
    count = unit.layers[0]
    stages = [chunk * unit.pp + rank for rank in range(unit.pp) for chunk in range(unit.parallelism.chunks)]
    order = [stage * count + layer for stage in stages for layer in range(count)]
    return {
        key: dataclasses.replace(stack, layers=tuple(stack.layers[layer] for layer in order))
        if stack.stacked
        else stack
        for key, stack in stacks.items()
    }


def check_processes(plan: Plan, devices: Sequence[jax.Device]) -> None:
    """Raises PlanError if a process has no device of the plan: all take part in the global norm and in checkpoints."""
    used = {devices[number].process_index for unit in plan.units for number in unit.devices}
    idle = {device.process_index for device in devices} - used
    if idle:
        raise PlanError(
            f"the plan uses no device of process {', '.join(map(str, sorted(idle)))}; "
            "start fewer processes, or give each a device"
        )


def check_host_memory(plan: Plan, devices: Sequence[Any], state_memory: StateMemory = "device") -> None:
    """Raises PlanError if a device, or a description of one, has no host memory and is to use it.

    Args:
        plan: The plan, which may offload layers.
        devices: The devices that the plan's numbers index.
        state_memory: Where master weights and optimizer state are to lie (`OptimizerConfig.state_memory`).
    """
    for unit in plan.units:
        for stage in range(unit.stage_count):
            offloaded = unit.layer_recompute(stage).count("offload")
            for number in unit.stage_devices(stage) if offloaded or state_memory == "host" else ():
                kinds = [memory.kind for memory in devices[number].addressable_memories()]
                if kinds and HOST_MEMORY not in kinds:  # none: a description of devices to compile for
                    what, instead = (
                        (f"{offloaded} of {unit.layers[stage]} layers", 'use recompute "selective" or "full"')
                        if offloaded
                        else ("master weights", 'set OptimizerConfig.state_memory to "device"')
                    )
                    raise PlanError(
                        f"unit {unit.name}: {what} of stage {stage} are to be offloaded, but device {number} "
                        f"({devices[number].device_kind}) has no memory {HOST_MEMORY}, "
                        f"only {', '.join(kinds) or 'its own'}; {instead}"
                    )


def check_sequence_parallelism(
    plan: Plan,
    modules: tuple[Module, ...],
    batch_spec: BatchSpec,
    phases: Mapping[str, PhaseRows],
) -> None:
    """Raises PlanError if ranks that divide the positions of a row cannot do so evenly, at each capacity."""
    for module in modules:
        unit = plan.unit_of(module.name)
        if not any(piece.sequence_parallel for piece in module.pieces):
            continue
        longest = batch_spec[module.name]["segments"].shape[1]
        fractions = phases[module.name].capacity_fractions if module.name in phases else (Fraction(1),)
        where = "its capacities" if unit.capacities else "the data configuration"
        for positions in (int(longest * fraction) for fraction in fractions):
            check_row_chunks(f"unit {unit.name}", unit.parallelism.cp, module.name, positions, where)
            check_rank_positions(unit, module.name, positions, where)
