"""Tries every hop and collective once before the first step (DistTrain, section 3: communication trials).

A link that does not work is found here, and named, instead of as a hang in the middle of a step.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from configs.errors import UserError
from sharding.runtime.broker import Hop, blank
from sharding.runtime.executor import Executor
from sharding.runtime.stage import Node


class LinkError(UserError):
    """A hop or collective that failed when it was tried; names the stages or the stage and axis."""


def rehearse(executor: Executor) -> None:
    """Runs every hop of activations, gradients and shared parameters, and a sum over every axis of every stage.

    Args:
        executor: Whose links to try; all processes call this together.

    Raises:
        LinkError: What failed, by name.
    """
    for node, stage in executor.stages.items():
        if stage.local:
            for axis in stage.programs.mesh.axis_names:
                _try(f"the sum over {axis!r} of {_named(node)}", _sum, stage.programs.mesh, axis)
    for channel in executor.channels:
        _there_and_back(f"the hop {channel.name}", channel.source, channel.target, channel.forth, channel.back)
    for share in executor.shares:
        _there_and_back(f"the sharing of {share.owned[1]}", share.owner, share.borrower, share.forth, share.back)
    nothing = dict.fromkeys(executor.stages)
    _try("the agreement of all devices", executor.agreement.decide, nothing, executor.agreement.start())


def _there_and_back(what: str, source: Node, target: Node, forth: Hop, back: Hop) -> None:
    _try(f"{what} from {_named(source)} to {_named(target)}", lambda: forth(blank(forth)))
    _try(f"{what} back from {_named(target)} to {_named(source)}", lambda: back(blank(back)))


def _named(node: Node) -> str:
    return f"unit {node[0]} stage {node[1]}"


def _sum(mesh: Mesh, axis: str) -> jax.Array:
    """One on every device, summed over an axis; raises LinkError if the sum is not its size."""
    ones = jax.make_array_from_callback(
        mesh.devices.shape,
        NamedSharding(mesh, P(*mesh.axis_names)),
        lambda index: np.ones((1,) * mesh.devices.ndim, np.float32),
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
