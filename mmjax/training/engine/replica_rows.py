"""The rows of a global batch that the pipeline replicas of a stage read, and their placement on its submesh.

A pipeline replica of a unit reads the microbatches that it takes and no others.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Bool, Shaped

from data.packing.phases.needed_rows import NeededRows
from data.packing.phases.phase_rows import PhaseRows
from mmjax.models.structure.parameters import place_host_array
from mmjax.training.engine.placement import PlacedStage
from sharding.plans.resolved.stage_graph import StageId
from sharding.schedules.ops import OpGraph


def rows_of_devices(
    stages: Mapping[StageId, PlacedStage],
    op_graph: OpGraph,
    phases: Mapping[str, PhaseRows],
    rows: int,
    devices: Collection[jax.Device],
) -> NeededRows:
    """The rows of a step that stages read on some devices.

    Args:
        stages: The stages.
        op_graph: Says which pipeline replica takes which microbatch.
        phases: The modules with rows of their own.
        rows: Rows of the global batch.
        devices: The devices.
    """
    microbatches = op_graph.microbatches
    needed_batch_rows = np.zeros((microbatches, rows // microbatches), bool)
    needed_phase_rows = {name: np.zeros((microbatches, phase.rows), bool) for name, phase in phases.items()}
    for (unit, _), stage in stages.items():
        for module in stage.layout.modules:
            needed = needed_phase_rows.get(module, needed_batch_rows)
            for pipeline_replica in range(len(stage.meshes.by_pipeline_replica)):
                taken = op_graph.stage_graph.microbatches_of(unit, pipeline_replica, microbatches)
                for held in _held_rows(stage, module, pipeline_replica, needed, devices):
                    needed[list(taken), held] = True
    return NeededRows(
        None if needed_batch_rows.all() else tuple(np.flatnonzero(needed_batch_rows).tolist()),
        {
            name: tuple(np.flatnonzero(needed).tolist())
            for name, needed in needed_phase_rows.items()
            if not needed.all()
        },
    )


def _held_rows(
    stage: PlacedStage,
    module: str,
    pipeline_replica: int,
    rows: Bool[np.ndarray, "m r"],
    devices: Collection[jax.Device],
) -> Iterator[slice]:
    """Returns the rows of a microbatch of a module that each device has, in one pipeline replica of its unit."""
    for device, (_, held) in stage.rows_sharding(module, pipeline_replica).devices_indices_map(rows.shape).items():
        if device in devices:
            yield held


def place_rows(
    array: Shaped[np.ndarray, "m r ..."], taken: Sequence[int], sharding: jax.sharding.Sharding
) -> jax.Array:
    """Places some of the microbatches of an array, `[taken, r, ...]`, whose first dimension is not divided.

    Each process fills the shards of its own devices.
    """
    if len(taken) == len(array):
        return place_host_array(array, sharding)

    def taken_rows(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        return array[(list(taken), *index[1:])]  # copies the rows of one device

    return jax.make_array_from_callback((len(taken), *array.shape[1:]), sharding, taken_rows)
