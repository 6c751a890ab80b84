"""The submesh of a stage, and the axes its modules are given."""

import dataclasses
import logging
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from pallas_kernels.collective_matmul.mosaic_limits import mesh_refusal
from sharding.axes import Axes
from sharding.plan import Plan, PlanError
from sharding.unit_plan import COLLECTIVES, UnitPlan

_LOG = logging.getLogger(__name__)

AXES = Axes(data=("data", "expert"), tensor=("tensor",), expert=("expert",))
"""The axes of every stage's submesh by purpose: consecutive data ranks split the experts among them."""


def unit_axes(unit: UnitPlan, mesh: Mesh) -> Axes:
    """What the axes of a unit's submesh are for, as its plan has the collectives of split matmuls.

    Where kernels of `mosaic` cannot run on the submesh they are done around a ring, and a warning says why.
    """
    if unit.tp == 1:
        return AXES
    sequence, matmul = COLLECTIVES[unit.collectives]
    if matmul == "mosaic" and (reason := mesh_refusal(mesh, AXES.tensor)):
        _LOG.warning("unit %s: its collectives go around the ring: %s", unit.name, reason)
        matmul = "ring"
    return dataclasses.replace(AXES, sequence=AXES.tensor if sequence else (), matmul=matmul)


def submesh(devices: Sequence[jax.Device], dp: int, tp: int, ep: int = 1) -> Mesh:
    """A mesh of dp x tp devices with the axes "data", "expert" and "tensor", there also where they have size 1.

    Args:
        devices: By data rank, then tensor rank; data rank = rank along "data" * ep + rank along "expert".
        dp: Data-parallel instances.
        tp: Tensor-parallel ranks of each.
        ep: Expert ranks, a divisor of dp.
    """
    if len(devices) != dp * tp or dp % ep:
        raise ValueError(f"a submesh of dp {dp} (ep {ep}) x tp {tp} cannot be made of {len(devices)} devices")
    return Mesh(np.array(devices).reshape(dp // ep, ep, tp), (*AXES.data, *AXES.tensor))


def stage_meshes(plan: Plan, devices: Sequence[jax.Device]) -> dict[tuple[str, int], Mesh]:
    """The submesh of every virtual stage (unit, number); a plan's device indices count in `devices`."""
    highest = max(index for unit in plan.units for index in unit.devices)
    if highest >= len(devices):
        raise PlanError(f"the plan needs device {highest}, but there are {len(devices)} devices; use fewer")
    return {
        (unit.name, stage): submesh([devices[index] for index in unit.stage_devices(stage)], unit.dp, unit.tp, unit.ep)
        for unit in plan.units
        for stage in range(unit.stages)
    }
