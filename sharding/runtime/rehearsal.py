"""Tries every hop and collective once before the first step (DistTrain, section 3: communication trials).

A link that does not work is found here, and named, instead of as a hang in the middle of a step.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from configs.errors import UserError
from sharding.runtime.executor import Channel, Executor
from sharding.runtime.stage import Node


class LinkError(UserError):
    """A hop or collective that failed when it was tried; names the stages or the stage and axis."""


def rehearse(executor: Executor, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """Runs every channel there and back, every shared parameter, and a sum over every axis of every stage.

    Args:
        executor: Whose links to try; all processes call this together.
        shapes: Shape and dtype of every channel.

    Raises:
        LinkError: What failed, by name.
    """
    for node, stage in executor.stages.items():
        if stage.local:
            for axis in stage.programs.mesh.axis_names:
                _try(f"the sum over {axis!r} of {_named(node)}", _sum, stage.programs.mesh, axis)
    for channel in executor.channels:
        ends = f"{_named(channel.source)} and {_named(channel.target)}"
        _try(f"the hop {channel.name} between {ends}", _there_and_back, executor, channel, shapes[channel.name])
    nothing = dict.fromkeys(executor.stages)
    _try("the agreement of all devices", executor.agreement.decide, nothing, executor.agreement.start())


def _named(node: Node) -> str:
    return f"unit {node[0]} stage {node[1]}"


def _there_and_back(executor: Executor, channel: Channel, shape: jax.ShapeDtypeStruct) -> jax.Array | None:
    source, target = (executor.stages[node] for node in (channel.source, channel.target))
    rows = NamedSharding(source.programs.mesh, P(source.programs.axes.data))
    arrived = channel.forth(_zeros(shape, rows, source.local))
    return channel.back(arrived if target.local else None)


def _zeros(shape: jax.ShapeDtypeStruct, sharding: NamedSharding, here: bool) -> jax.Array | None:
    if not here:
        return None
    zeros = np.zeros(shape.shape, shape.dtype)
    return jax.make_array_from_callback(shape.shape, sharding, lambda index: zeros[index])


def _sum(mesh: Mesh, axis: str) -> jax.Array:
    """One on every device, summed over an axis; raises LinkError if the sum is not its size."""
    ones = jax.make_array_from_callback(
        mesh.devices.shape, NamedSharding(mesh, P(*mesh.axis_names)), lambda index: np.ones((1, 1), np.float32)
    )
    every = P(*(None if name == axis else name for name in mesh.axis_names))
    total = jax.jit(
        jax.shard_map(lambda x: lax.psum(x, axis), mesh=mesh, in_specs=P(*mesh.axis_names), out_specs=every)
    )(ones)
    for shard in total.addressable_shards:
        if not bool(jnp.all(shard.data == mesh.shape[axis])):
            raise LinkError(f"gives {shard.data}, not {mesh.shape[axis]}")
    return total


def _try(what: str, run: Callable[..., Any], *arguments: Any) -> None:
    try:
        jax.block_until_ready(run(*arguments))
    except (RuntimeError, ValueError, LinkError) as error:
        raise LinkError(f"{what} does not work: {error}") from error
