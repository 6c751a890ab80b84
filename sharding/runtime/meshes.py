"""The submesh of a stage, and the axes its modules are given."""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from sharding.axes import Axes
from sharding.plan import Plan, PlanError

AXES = Axes(data=("data",), tensor=("tensor",))
"""The axes of every stage's submesh by purpose."""


def submesh(devices: Sequence[jax.Device], dp: int, tp: int) -> Mesh:
    """A mesh of dp x tp devices with the axes "data" and "tensor", which are there also where they have size 1.

    Args:
        devices: By data rank, then tensor rank.
        dp: Data-parallel instances.
        tp: Tensor-parallel ranks of each.
    """
    if len(devices) != dp * tp:
        raise ValueError(f"a submesh of dp {dp} x tp {tp} needs {dp * tp} devices, not {len(devices)}")
    return Mesh(np.array(devices).reshape(dp, tp), (*AXES.data, *AXES.tensor))


def stage_meshes(plan: Plan, devices: Sequence[jax.Device]) -> dict[tuple[str, int], Mesh]:
    """The submesh of every virtual stage (unit, number); a plan's device indices count in `devices`."""
    highest = max(index for unit in plan.units for index in unit.devices)
    if highest >= len(devices):
        raise PlanError(f"the plan needs device {highest}, but there are {len(devices)} devices; use fewer")
    return {
        (unit.name, stage): submesh([devices[index] for index in unit.stage_devices(stage)], unit.dp, unit.tp)
        for unit in plan.units
        for stage in range(unit.stages)
    }
