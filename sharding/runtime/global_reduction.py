"""The reduction over all stages once a step: the global gradient norm, its clipping and whether everything was finite.

It is one small program over all devices of the plan; nothing is read on the host. A step that was not finite is
remembered on the devices (`all_finite` stays 0), so that no later step changes the state before the host has noticed.
The executor runs the program between the reductions of gradients and the updates.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from configs.common.short_repr import short_repr
from sharding.plans.resolved.stage_graph import StageId


@dataclasses.dataclass(frozen=True)
class StepSummary:
    """The result of the reduction, all but `decision` replicated over all devices.

    Attributes:
        losses: `[losses]` of all stages, in the order of `GlobalReduction.loss_order`.
        gradient_norm: Norm of the gradients of all units together.
        clip_scale: Factor by which gradients are multiplied: min(1, max_norm / gradient_norm).
        all_finite: 1.0, or 0.0 once a loss or a gradient of this or an earlier step was not finite.
        decision: `[devices, 2]`: `clip_scale` and `all_finite` once more, a row on each device. One array, whose
            elements every stage's update takes as they lie there (`GlobalReduction.on_stage`).
    """

    losses: Any
    gradient_norm: Any
    clip_scale: Any
    all_finite: Any
    decision: Any

    __repr__ = short_repr


jax.tree_util.register_dataclass(StepSummary, ["losses", "gradient_norm", "clip_scale", "all_finite", "decision"], [])


class GlobalReduction:
    """The program, and views of its result on the submeshes of the stages.

    Args:
        devices: All devices of the plan, each once.
        meshes: Submesh of every stage.
        losses: Names of every stage's losses, in the order in which `reduce` is given them.

    Attributes:
        stage_ids: All stages.
        loss_order: (stage, name) of every loss, in the order of `StepSummary.losses`.
        program: The jitted program.
    """

    def __init__(
        self,
        devices: Sequence[jax.Device],
        meshes: Mapping[StageId, Mesh],
        losses: Mapping[StageId, tuple[str, ...]],
    ) -> None:
        self.stage_ids = tuple(meshes)
        self.loss_order = tuple((stage_id, name) for stage_id in meshes for name in losses[stage_id])
        self._widths = {stage_id: 1 + len(losses[stage_id]) for stage_id in meshes}
        self._mesh = Mesh(np.array(devices), ("all",))
        self._by_device = NamedSharding(self._mesh, P("all"))
        self._on_stages = {stage_id: NamedSharding(mesh, P()) for stage_id, mesh in meshes.items()}
        self._local_devices = [device for device in devices if device.process_index == jax.process_index()]
        position_of = {device: position for position, device in enumerate(self._local_devices)}
        self._positions = {
            stage_id: [position_of[device] for device in mesh.devices.flat if device in position_of]
            for stage_id, mesh in meshes.items()
        }
        self._first_positions = {stage_id: position_of.get(mesh.devices.flat[0]) for stage_id, mesh in meshes.items()}
        self._zeros = {
            width: [jax.device_put(np.zeros((1, width), np.float32), device) for device in self._local_devices]
            for width in set(self._widths.values())
        }

        def global_reduction(statistics: list[jax.Array], all_finite: jax.Array, max_norm: jax.Array) -> StepSummary:
            totals = [lax.psum(array[0], "all") for array in statistics]  # per stage [1 + losses]
            norm = jnp.sqrt(jnp.sum(jnp.stack([total[0] for total in totals])))
            loss_sums = jnp.concatenate([total[1:] for total in totals])
            finite = jnp.isfinite(norm) & jnp.all(jnp.isfinite(loss_sums))
            scale = jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-30))
            all_finite = jnp.where(finite, all_finite, 0.0)
            return StepSummary(loss_sums, norm, scale, all_finite, jnp.stack([scale, all_finite])[None])

        in_specs = ([P("all")] * len(self.stage_ids), P(), P())
        out_specs = StepSummary(P(), P(), P(), P(), P("all"))
        self.program = jax.jit(jax.shard_map(global_reduction, mesh=self._mesh, in_specs=in_specs, out_specs=out_specs))

    def abstract_arguments(self) -> tuple[list[jax.ShapeDtypeStruct], jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """Abstract arguments of `program`: the statistics of every stage on all devices, the flag, and the limit."""
        by_device, replicated = self._by_device, NamedSharding(self._mesh, P())
        statistics = [
            jax.ShapeDtypeStruct((self._mesh.devices.size, self._widths[stage_id]), np.float32, sharding=by_device)
            for stage_id in self.stage_ids
        ]
        scalar = jax.ShapeDtypeStruct((), np.float32, sharding=replicated)
        return statistics, scalar, scalar

    def abstract_decision(self, stage_id: StageId) -> jax.ShapeDtypeStruct:
        """Shape and sharding of `on_stage`."""
        return jax.ShapeDtypeStruct((1, 2), np.float32, sharding=self._on_stages[stage_id])

    def initial_flag(self, all_finite: bool = True) -> jax.Array:
        """The `all_finite` of a state in which everything was finite so far."""
        return self._replicated(np.float32(all_finite))

    def max_norm(self, limit: float | None) -> jax.Array:
        """The `max_norm` of `reduce`: a global norm, or None for no clipping."""
        return self._replicated(np.float32(np.inf if limit is None else limit))

    def reduce(
        self, statistics: Mapping[StageId, jax.Array | None], all_finite: jax.Array, max_norm: jax.Array
    ) -> StepSummary:
        """Combines the statistics of every stage with the flag of the steps before.

        Args:
            statistics: `[1, 1 + losses]` of every stage of this process, replicated over its submesh: the squared norm
                of its gradients, then its losses. None or absent for the other stages.
            all_finite: The flag that the step before returned.
            max_norm: Global norm above which gradients are scaled down.
        """
        stage_statistics = [self._on_all_devices(stage, statistics.get(stage)) for stage in self.stage_ids]
        return self.program(stage_statistics, all_finite, max_norm)

    def on_stage(self, summary: StepSummary, stage_id: StageId) -> jax.Array:
        """`[1, 2]`, the decision on a stage's submesh, of which this process has devices, without a copy."""
        shards = [summary.decision.addressable_data(position) for position in self._positions[stage_id]]
        return jax.make_array_from_single_device_arrays((1, 2), self._on_stages[stage_id], shards)

    def _on_all_devices(self, stage_id: StageId, statistics: jax.Array | None) -> jax.Array:
        """`[devices, width]` over all devices: the stage's statistics on its first device, zeros on all others."""
        width, first = self._widths[stage_id], self._first_positions[stage_id]
        shards = list(self._zeros[width])
        if statistics is not None and first is not None:
            shards[first] = statistics.addressable_data(0)
        return jax.make_array_from_single_device_arrays((self._mesh.devices.size, width), self._by_device, shards)

    def _replicated(self, value: np.float32) -> jax.Array:
        shards = [jax.device_put(value, device) for device in self._local_devices]
        return jax.make_array_from_single_device_arrays((), NamedSharding(self._mesh, P()), shards)
