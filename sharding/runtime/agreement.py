"""What all units must agree on once a step: the global norm, the clip and whether everything was finite.

One small program over all devices of the plan; nothing is read on the host. A step that was not finite is remembered
on the devices (`ok` stays false), so that no later step changes the state before the host has noticed.
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

from sharding.runtime.stage import Node


@dataclasses.dataclass(frozen=True)
class Decision:
    """The outcome, replicated over all devices.

    Attributes:
        losses: `[losses]` of all stages, in the agreement's order.
        norm: Norm of all gradients of all units.
        scale: Factor that clips them: min(1, limit / norm).
        ok: 1.0 unless a loss or gradient of this or an earlier step was not finite.
    """

    losses: jax.Array
    norm: jax.Array
    scale: jax.Array
    ok: jax.Array


jax.tree_util.register_dataclass(Decision, ["losses", "norm", "scale", "ok"], [])


class Agreement:
    """The program and the views of its result.

    Args:
        devices: All devices of the plan, each once.
        meshes: Submesh of every stage.
        losses: Names of every stage's losses, in the order in which its stats have them.
        max_norm: Global norm above which gradients are scaled down; None for no clipping.

    Attributes:
        order: (stage, name) of every loss, as `Decision.losses` has them.
    """

    def __init__(
        self,
        devices: Sequence[jax.Device],
        meshes: Mapping[Node, Mesh],
        losses: Mapping[Node, tuple[str, ...]],
        max_norm: float | None,
    ) -> None:
        self.nodes = tuple(meshes)
        self.order = tuple((node, name) for node in meshes for name in losses[node])
        self._widths = {node: 1 + len(losses[node]) for node in meshes}
        self._mesh = Mesh(np.array(devices), ("all",))
        self._stage_meshes = dict(meshes)
        self._mine = [d for d in devices if d.process_index == jax.process_index()]
        self._blank = {
            width: {d: jax.device_put(np.zeros((1, width), np.float32), d) for d in self._mine}
            for width in set(self._widths.values())
        }

        def decide(stats: list[jax.Array], ok: jax.Array) -> Decision:
            gathered = [lax.psum(each[0], "all") for each in stats]
            norm = jnp.sqrt(jnp.sum(jnp.stack([each[0] for each in gathered])))
            losses = jnp.concatenate([each[1:] for each in gathered])
            finite = jnp.isfinite(norm) & jnp.all(jnp.isfinite(losses))
            scale = jnp.ones(()) if max_norm is None else jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-30))
            return Decision(losses, norm, scale, jnp.where(finite, ok, 0.0))

        stats = [P("all")] * len(self.nodes)
        self._decide = jax.jit(jax.shard_map(decide, mesh=self._mesh, in_specs=(stats, P()), out_specs=P()))

    def start(self, ok: bool = True) -> jax.Array:
        """The `ok` of a state that was finite so far."""
        return self._replicated(np.float32(ok))

    def decide(self, stats: Mapping[Node, jax.Array | None], ok: jax.Array) -> Decision:
        """Combines `[1, 1 + losses]` (squared norm, losses) of every stage, the same on its submesh, with the flag."""
        return self._decide([self._assembled(node, stats.get(node)) for node in self.nodes], ok)

    def view(self, decision: Decision, node: Node) -> Decision | None:
        """The same values on a stage's submesh, without a copy; None where this process has no part of it."""
        sharding = NamedSharding(self._stage_meshes[node], P())
        members = [d for d in self._stage_meshes[node].devices.flat if d.process_index == jax.process_index()]

        def one(array: jax.Array) -> jax.Array:
            held = {shard.device: shard.data for shard in array.addressable_shards}
            return jax.make_array_from_single_device_arrays(array.shape, sharding, [held[d] for d in members])

        return jax.tree.map(one, decision) if members else None

    def _assembled(self, node: Node, stats: jax.Array | None) -> jax.Array:
        """The stage's first device speaks for it; all others say zero."""
        width = self._widths[node]
        shards = dict(self._blank[width])
        first = self._stage_meshes[node].devices.flat[0]
        if stats is not None and first in shards:
            shards[first] = next(shard.data for shard in stats.addressable_shards if shard.device == first)
        shape = (self._mesh.devices.size, width)
        sharding = NamedSharding(self._mesh, P("all"))
        return jax.make_array_from_single_device_arrays(shape, sharding, [shards[d] for d in self._mine])

    def _replicated(self, value: Any) -> jax.Array:
        shards = [jax.device_put(value, d) for d in self._mine]
        sharding = NamedSharding(self._mesh, P())
        return jax.make_array_from_single_device_arrays(np.shape(value), sharding, shards)
