"""The submesh of a stage, and the mesh axes that its modules are given.

The engine places the parameters and programs of every stage on these meshes.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from pallas_kernels.collective_matmul.mosaic_support import unsupported_mesh_reason
from pallas_kernels.fallbacks import warn_once
from sharding.axes import Axes
from sharding.plans.parallelism import TENSOR_COLLECTIVES
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.stage_axes import stage_axes
from sharding.plans.resolved.stage_graph import StageId
from sharding.plans.unit_plan import UnitPlan
from sharding.runtime.replica_meshes import ReplicaMeshes


def module_axes(unit: UnitPlan, meshes: ReplicaMeshes) -> dict[str, Axes]:
    """The axes that each module of a unit is given on a submesh, with the collective matmuls that its plan names.

    Where the plan says `mosaic` and its kernels cannot run on each submesh, the ring is used and a warning says why.

    Args:
        unit: The unit.
        meshes: The meshes of one of its stages.
    """
    return {
        module: dataclasses.replace(
            _with_collectives(unit, module, axes, meshes),
            expert_nodes=most_nodes(meshes.all_pipeline_replicas, axes.expert),
            expert_transfer=unit.parallelism.expert_transfer,
        )
        for module, axes in stage_axes(unit).modules.items()
    }


def node_of(device: jax.Device) -> int:
    """The number of a device's node, whose devices are joined by fast links.

    JAX reports the node of GPUs (`slice_index`). Of other devices, the devices of a process count as a node; of
    described GPUs too (`jax.experimental.topologies`), all of which are in slice 0.
    """
    is_described = type(getattr(device, "client", None)).__name__ == "CompileOnlyPyClient"
    return device.process_index if is_described else getattr(device, "slice_index", device.process_index)


def most_nodes(mesh: Mesh, axes: tuple[str, ...]) -> int:
    """The most nodes that ranks along some axes of a mesh are on, the other axes aside."""
    nodes = np.vectorize(node_of, otypes=[int])(mesh.devices)
    last = np.moveaxis(nodes, [mesh.axis_names.index(axis) for axis in axes], range(-len(axes), 0))
    groups = last.reshape(-1, math.prod(mesh.shape[axis] for axis in axes))
    return max(len(np.unique(group)) for group in groups)


def _with_collectives(unit: UnitPlan, module: str, axes: Axes, meshes: ReplicaMeshes) -> Axes:
    if unit.tensor_ranks_of(module) == 1:
        return axes
    sequence_parallel, backend = TENSOR_COLLECTIVES[unit.parallelism.collectives]
    if backend == "mosaic":
        reasons = (unsupported_mesh_reason(mesh, axes.tensor) for mesh in meshes.by_pipeline_replica)
        if reason := next(filter(None, reasons), ""):
            warn_once(f'unit {unit.name}: collectives "ring" are used instead of "mosaic": {reason}')
            backend = "ring"
    return dataclasses.replace(axes, sequence=axes.tensor if sequence_parallel else (), collective_matmul=backend)


def submesh(devices: Sequence[jax.Device], sizes: Mapping[str, int]) -> Mesh:
    """A mesh with axes of these sizes, also where they have size 1; its devices in row-major order.

    Raises:
        ValueError: The number of devices is not the product of the sizes.
    """
    if len(devices) != np.prod(list(sizes.values()), dtype=int):
        words = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(f"a submesh of {words} cannot be made of {len(devices)} devices")
    return Mesh(np.array(devices).reshape(tuple(sizes.values())), tuple(sizes))


def stage_meshes(plan: Plan, devices: Sequence[jax.Device]) -> dict[StageId, ReplicaMeshes]:
    """The meshes of every stage with programs of its own; the device indices of a plan are positions in `devices`.

    Raises:
        PlanError: The plan names a device that does not exist.
    """
    highest = max(index for unit in plan.units for index in unit.devices)
    if highest >= len(devices):
        raise PlanError(f"the plan needs device {highest}, but there are {len(devices)} devices; use fewer")

    def mesh(unit: UnitPlan, stage: int, pipeline_replica: int) -> Mesh:
        return submesh(
            [devices[index] for index in unit.program_devices(stage, pipeline_replica)], stage_axes(unit).sizes
        )

    return {
        (unit.name, stage): ReplicaMeshes(
            tuple(mesh(unit, stage, pipeline_replica) for pipeline_replica in range(unit.parallelism.pipeline_replicas))
        )
        for unit in plan.units
        for stage in range(unit.program_count)
    }
