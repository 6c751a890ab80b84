"""The submesh of a stage, and the mesh axes that its modules are given."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from pallas_kernels.collective_matmul.mosaic_support import unsupported_mesh_reason
from pallas_kernels.fallbacks import warn_once
from sharding.axes import Axes
from sharding.plans.plan import Plan
from sharding.plans.stage_graph import StageId
from sharding.plans.unit_plan import TENSOR_COLLECTIVES, PlanError, UnitPlan

STAGE_AXES = Axes(data=("data", "expert"), tensor=("tensor",), expert=("expert",))
"""The axes of every stage's submesh by purpose: consecutive data ranks split the experts among them."""


def unit_axes(unit: UnitPlan, mesh: Mesh) -> Axes:
    """The axes that the modules of a unit are given, with the collective matmuls that its plan names.

    Where the plan says `mosaic` and its kernels cannot run on the submesh, the ring is used and a warning says why.
    """
    if unit.tp == 1:
        return STAGE_AXES
    sequence_parallel, backend = TENSOR_COLLECTIVES[unit.collectives]
    if backend == "mosaic" and (reason := unsupported_mesh_reason(mesh, STAGE_AXES.tensor)):
        warn_once(f'unit {unit.name}: collectives "ring" are used instead of "mosaic": {reason}')
        backend = "ring"
    sequence = STAGE_AXES.tensor if sequence_parallel else ()
    return dataclasses.replace(STAGE_AXES, sequence=sequence, collective_matmul=backend)


def submesh(devices: Sequence[jax.Device], dp: int, tp: int, ep: int = 1) -> Mesh:
    """A mesh of dp x tp devices with the axes "data", "expert" and "tensor", also where they have size 1.

    Args:
        devices: Ordered by data rank, then by tensor rank; data rank = rank along "data" * ep + rank along "expert".
        dp: Number of data-parallel replicas.
        tp: Tensor-parallel ranks of each.
        ep: Expert-parallel ranks, a divisor of dp.

    Raises:
        ValueError: The number of devices is not dp x tp, or ep does not divide dp.
    """
    if len(devices) != dp * tp or dp % ep:
        raise ValueError(f"a submesh of dp {dp} (ep {ep}) x tp {tp} cannot be made of {len(devices)} devices")
    return Mesh(np.array(devices).reshape(dp // ep, ep, tp), (*STAGE_AXES.data, *STAGE_AXES.tensor))


def stage_meshes(plan: Plan, devices: Sequence[jax.Device]) -> dict[StageId, Mesh]:
    """The submesh of every virtual stage; the device indices of a plan are positions in `devices`.

    Raises:
        PlanError: The plan names a device that does not exist.
    """
    highest = max(index for unit in plan.units for index in unit.devices)
    if highest >= len(devices):
        raise PlanError(f"the plan needs device {highest}, but there are {len(devices)} devices; use fewer")
    return {
        (unit.name, stage): submesh([devices[index] for index in unit.stage_devices(stage)], unit.dp, unit.tp, unit.ep)
        for unit in plan.units
        for stage in range(unit.stage_count)
    }
