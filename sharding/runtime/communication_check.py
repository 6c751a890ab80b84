"""Tries every hop and every collective once before the first step (DistTrain, section 3: communication trials).

A link that does not work is found here and named, instead of hanging in the middle of a step. The trainer calls
`check_communication` at its start.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from configs.common.errors import UserError
from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.exchange.exchange_hop import ExchangeHop
from sharding.runtime.executor import Executor
from sharding.runtime.hops import Hop
from sharding.runtime.pipeline import Channel


class CommunicationError(UserError):
    """A hop or a collective failed when it was tried; the message names the stages, or the stage and the axis."""


def check_communication(executor: Executor) -> None:
    """Runs every hop of activations, gradients and tied parameters, and a sum over every mesh axis that has ranks.

    Args:
        executor: The executor whose links are tried; all processes call this together.

    Raises:
        CommunicationError: Something failed; the message says what.
    """
    for stage_id, stage in executor.stages.items():
        if stage.is_local:
            mesh = stage.meshes.all_pipeline_replicas
            for axis in (name for name, size in mesh.shape.items() if size > 1):
                _try(f"the sum over {axis!r} of {_describe(stage_id)}", _sum_of_ones, mesh, axis)
    for channel in executor.channels:
        link = f"the hop {channel.name}{_describe_replicas(executor, channel)}{_describe_capacity(executor, channel)}"
        _try_both_ways(link, channel.source, channel.target, channel.activation_hop, channel.gradient_hop)
    for tied in executor.tied_parameters:
        link = f"the hop of the tied parameter {tied.owner_path[1]}"
        _try_both_ways(link, tied.owner, tied.borrower, tied.weight_hop, tied.gradient_hop)
    no_statistics = dict.fromkeys(executor.stages)
    reduction, limit = executor.global_reduction, executor.hyperparameters.max_norm
    _try("the reduction over all devices", reduction.reduce, no_statistics, reduction.initial_flag(), limit)


def _try_both_ways(
    link: str, source: StageId, target: StageId, hop: Hop | ExchangeHop, gradient_hop: Hop | ExchangeHop
) -> None:
    _try(f"{link} from {_describe(source)} to {_describe(target)}", hop.send_zeros)
    _try(f"{link} back from {_describe(target)} to {_describe(source)}", gradient_hop.send_zeros)


def _describe_capacity(executor: Executor, channel: Channel) -> str:
    """Which of several capacities a channel is for, in words."""
    count = max(len(executor.stages[end].pipeline_replicas[0].by_capacity) for end in (channel.source, channel.target))
    return f", capacity {channel.capacity + 1} of {count}" if count > 1 else ""


def _describe_replicas(executor: Executor, channel: Channel) -> str:
    """Which pipeline replicas of units a channel joins, in words; empty if there is one of each."""
    ends = ((channel.source, channel.source_replica), (channel.target, channel.target_replica))
    words = [
        f"pipeline replica {pipeline_replica} of {end[0]}"
        for end, pipeline_replica in ends
        if len(executor.stages[end].pipeline_replicas) > 1
    ]
    return f" ({', '.join(dict.fromkeys(words))})" if words else ""


def _describe(stage_id: StageId) -> str:
    return f"unit {stage_id[0]} stage {stage_id[1]}"


def _sum_of_ones(mesh: Mesh, axis: str) -> jax.Array:
    """The sum over an axis of one on every device. Raises CommunicationError if it is not the size of the axis."""
    ones = jax.make_array_from_callback(
        mesh.devices.shape,
        NamedSharding(mesh, P(*mesh.axis_names)),
        lambda index: np.ones((1,) * mesh.devices.ndim, np.float32),
    )
    total = _sum_program(mesh, axis)(ones)
    for shard in total.addressable_shards:
        if not np.all(np.asarray(shard.data) == mesh.shape[axis]):
            raise CommunicationError(f"it gives {shard.data}, not {mesh.shape[axis]}")
    return total


@functools.lru_cache
def _sum_program(mesh: Mesh, axis: str) -> Callable[[jax.Array], jax.Array]:
    """Compiled once for the stages, and the trainers of a process, that share a mesh."""
    summed_specs = P(*(None if name == axis else name for name in mesh.axis_names))
    return jax.jit(
        jax.shard_map(lambda x: lax.psum(x, axis), mesh=mesh, in_specs=P(*mesh.axis_names), out_specs=summed_specs)
    )


def _try(communication: str, run: Callable[..., Any], *arguments: Any) -> None:
    try:
        jax.block_until_ready(run(*arguments))
    except (RuntimeError, ValueError, CommunicationError) as error:
        raise CommunicationError(f"{communication} does not work: {error}") from error
