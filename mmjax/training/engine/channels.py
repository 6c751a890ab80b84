"""The channels of a plan: the stages at their ends, the rows that arrive through exchanges, and hops by capacity.

A step of the engine's building (`build.py`), between placing the stages and compiling their programs.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

from data.packing.phases.phase_rows import PhaseRows
from mmjax.training.engine.placement import PlacedStage
from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.exchange.exchange_hop import ExchangeEnd, ExchangeHop
from sharding.runtime.hops import Hop, make_hop
from sharding.runtime.pipeline import Channel, ReplicaPrograms
from sharding.runtime.stages.mesh_programs import MeshPrograms
from sharding.schedules.ops import OpGraph

T = TypeVar("T")

RowsOfCapacities = tuple[tuple[int, int], ...]
"""(rows, places of a row) of a microbatch: one pair for each capacity, or one for all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChannelEndpoints:
    """A channel: the stage that sends its activations, and the stage that receives them."""

    name: str
    source: StageId
    target: StageId


def find_channels(stages: Mapping[StageId, PlacedStage]) -> tuple[ChannelEndpoints, ...]:
    """Finds every channel between two stages."""
    sources = {name: stage_id for stage_id, stage in stages.items() for name in stage.layout.outputs}
    return tuple(
        ChannelEndpoints(name=name, source=sources[name], target=stage_id)
        for stage_id, stage in stages.items()
        for name in stage.layout.inputs
    )


def find_exchanges(phases: Mapping[str, PhaseRows], backbone: str, rows: int) -> dict[str, RowsOfCapacities]:
    """Returns, by channel with an exchange hop, the rows of a microbatch and the places of a row where it arrives.

    Args:
        phases: The modules with rows of their own.
        backbone: Name of the backbone, which has the rows of the global batch.
        rows: Rows of a microbatch of the global batch.
    """
    return {
        f"{backbone}>{name}" if phase.is_generator else f"{name}>{backbone}": (
            tuple((phase.rows, capacity) for capacity in phase.capacities)
            if phase.is_generator
            else ((rows, phase.slots),)
        )
        for name, phase in phases.items()
    }


def make_channels(
    endpoints: ChannelEndpoints,
    programs: Mapping[StageId, tuple[ReplicaPrograms, ...]],
    op_graph: OpGraph,
    transport: str,
    is_exchange: bool,
) -> list[Channel]:
    """Makes the channels with the hops that carry activations and their gradients.

    There is one for each pair of pipeline replicas of its ends that take the same microbatch, and for each capacity.
    """
    source, target = endpoints.source, endpoints.target
    channels = []
    for source_replica, target_replica in pipeline_replica_pairs(op_graph, source[0], target[0]):
        ends = (programs[source][source_replica].by_capacity, programs[target][target_replica].by_capacity)
        for capacity in range(max(map(len, ends))):
            begin, end = (of_capacity(by_capacity, capacity) for by_capacity in ends)
            there, back = _make_hops(endpoints.name, begin, end, transport, is_exchange)
            channels.append(
                Channel(
                    name=endpoints.name,
                    source=source,
                    target=target,
                    source_replica=source_replica,
                    target_replica=target_replica,
                    activation_hop=there,
                    gradient_hop=back,
                    capacity=capacity,
                )
            )
    return channels


def pipeline_replica_pairs(op_graph: OpGraph, source: str, target: str) -> list[tuple[int, int]]:
    """Returns the pipeline replicas of two units that take the same microbatch, each pair once, in ascending order."""
    graph = op_graph.stage_graph
    return sorted(
        {
            (
                graph.pipeline_replica_of_microbatch(source, microbatch),
                graph.pipeline_replica_of_microbatch(target, microbatch),
            )
            for microbatch in range(op_graph.microbatches)
        }
    )


def _make_hops(
    name: str, source: MeshPrograms, target: MeshPrograms, transport: str, is_exchange: bool
) -> tuple[Hop, Hop] | tuple[ExchangeHop, ExchangeHop]:
    """The hops of a channel's activations and of their gradients."""
    begin, end = source.channel_shardings[name], target.channel_shardings[name]
    shape, dtype = source.channel_shapes[name].shape, source.channel_shapes[name].dtype
    if is_exchange:
        sent, received = ExchangeEnd(begin, shape), ExchangeEnd(end, target.channel_shapes[name].shape)
        return ExchangeHop(sent, received, dtype), ExchangeHop(received, sent, dtype)
    return make_hop(begin, end, shape, dtype, transport), make_hop(end, begin, shape, dtype, transport)


def of_capacity(by_capacity: Sequence[T], capacity: int) -> T:
    """Selects the entry of a capacity from a sequence with one entry for each capacity, or one for all."""
    return by_capacity[capacity if len(by_capacity) > 1 else 0]
