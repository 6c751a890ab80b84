"""The peak memory of a step: the most bytes that devices hold at any moment."""

import collections
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from sharding.costs.step_costs import StageCosts
from sharding.plans.device_groups import DeviceGroups, source_replicas
from sharding.plans.stage_graph import StageId
from sharding.schedules.ops import OpGraph, OpKind
from sharding.simulation.spans import Span


def peak_memory(
    op_graph: OpGraph, groups: DeviceGroups, stages: Mapping[StageId, StageCosts], spans: Sequence[Span]
) -> Float[np.ndarray, " n"]:
    """Peak bytes on a device of each group, over all the stages that it holds.

    A stage that runs a backward holds `StageCosts.saved_bytes` of a microbatch from the start of its forward to the end
    of its backward. A stage that runs none holds them until every replica that it feeds has started its forward.

    Args:
        op_graph: What the step did.
        groups: Its devices.
        stages: Costs of every stage.
        spans: When each op ran.
    """
    starts, ends = _by_stage(spans)
    static = np.zeros(len(groups.sizes))
    owners, times, changes = [], [], []
    for stage, stage_groups in groups.groups_of.items():
        replica, column = np.nonzero(groups.is_first[stage])
        group = stage_groups[replica, column]
        np.add.at(static, group, stages[stage].static_bytes)
        saved = stages[stage].saved_bytes[:, replica]
        owner = np.broadcast_to(group, saved.shape)
        owners += [owner, owner]
        times += [starts["forward", stage][:, replica], _release_times(op_graph, starts, ends, stage)[:, replica]]
        changes += [saved, -saved]
    flat_owners, flat_times, flat_changes = (
        np.concatenate([array.ravel() for array in arrays]) for arrays in (owners, times, changes)
    )
    return static + _peaks(flat_owners, flat_times, flat_changes, len(static))


_Table = Mapping[tuple[OpKind, StageId], Float[np.ndarray, "m _"]]


def _by_stage(spans: Sequence[Span]) -> tuple[_Table, _Table]:
    """Start and end of every stage's forwards and backwards, as [microbatches, replicas]."""
    by_microbatch: dict[tuple[OpKind, StageId], dict[int, Span]] = collections.defaultdict(dict)
    for span in spans:
        if span.op.kind in ("forward", "backward"):
            by_microbatch[span.op.kind, span.op.stage_id][span.op.microbatch] = span
    ordered = {key: [found[number] for number in sorted(found)] for key, found in by_microbatch.items()}
    return (
        {key: np.stack([span.start for span in stage_spans]) for key, stage_spans in ordered.items()},
        {key: np.stack([span.end for span in stage_spans]) for key, stage_spans in ordered.items()},
    )


def _release_times(op_graph: OpGraph, starts: _Table, ends: _Table, stage: StageId) -> Float[np.ndarray, "m i"]:
    """When each replica of a stage releases what it saved of each microbatch."""
    if stage in op_graph.backward_stages:
        return ends["backward", stage]
    released = ends["forward", stage]
    for target in op_graph.stage_graph.targets[stage]:
        taken = starts["forward", target]
        takers = source_replicas(taken.shape[1], released.shape[1], op_graph.stage_graph.is_exchange(stage, target))
        released = np.maximum(released, taken[:, takers].max(axis=2))
    return released


def _peaks(
    owners: Int[np.ndarray, " e"],
    times: Float[np.ndarray, " e"],
    changes: Float[np.ndarray, " e"],
    count: int,
) -> Float[np.ndarray, " n"]:
    """For every owner, the highest running sum of its changes; of changes at one moment, releases come first."""
    order = np.lexsort((changes, times, owners))
    running = np.cumsum(changes[order])
    first = np.searchsorted(owners[order], np.arange(count))
    before = np.where(first > 0, running[first - 1], 0.0)
    return np.maximum.reduceat(running, first) - before
