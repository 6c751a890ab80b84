"""The most memory that devices hold at a moment of a step."""

import collections
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from sharding.costs.step_costs import StageCosts
from sharding.plans.device_groups import DeviceGroups, source_replicas
from sharding.plans.stage_graph import StageId
from sharding.schedules.ops import OpGraph
from sharding.simulation.spans import Span


def peak_memory(
    work: OpGraph, groups: DeviceGroups, stages: Mapping[StageId, StageCosts], spans: Sequence[Span]
) -> Float[np.ndarray, " n"]:
    """Bytes on a device of each group, at most: of all the stages that lie there.

    A stage with a backward holds `StageCosts.held` of a microbatch from the start of its forward to the end of its
    backward; one without holds it until every instance it feeds starts its forward.
    """
    starts, ends = _by_stage(spans)
    static = np.zeros(len(groups.sizes))
    owners, times, changes = [], [], []
    for node, rows in groups.groups_of.items():
        instance, column = np.nonzero(groups.is_first[node])
        np.add.at(static, rows[instance, column], stages[node].static_bytes)
        owner = np.broadcast_to(rows[instance, column], (work.microbatches, len(instance)))
        held = stages[node].saved_bytes[:, instance]
        owners += [owner, owner]
        times += [starts["forward", node][:, instance], _releases(work, starts, ends, node)[:, instance]]
        changes += [held, -held]
    events = [np.concatenate([part.ravel() for part in parts]) for parts in (owners, times, changes)]
    return static + _peaks(*events, len(static))


_Table = Mapping[tuple[str, StageId], Float[np.ndarray, "m _"]]


def _by_stage(spans: Sequence[Span]) -> tuple[_Table, _Table]:
    """Start and end of every stage's forwards and backwards, as [microbatches, instances]."""
    found: dict[tuple[str, StageId], dict[int, Span]] = collections.defaultdict(dict)
    for span in spans:
        if span.op.kind in ("forward", "backward"):
            found[span.op.kind, span.op.stage_id][span.op.microbatch] = span
    ordered = {key: [turns[number] for number in sorted(turns)] for key, turns in found.items()}
    return (
        {key: np.stack([span.start for span in turns]) for key, turns in ordered.items()},
        {key: np.stack([span.end for span in turns]) for key, turns in ordered.items()},
    )


def _releases(work: OpGraph, starts: _Table, ends: _Table, node: StageId) -> Float[np.ndarray, "m i"]:
    """When each instance of a stage lets go of each microbatch."""
    if node in work.backward_stages:
        return ends["backward", node]
    released = ends["forward", node]
    for target in work.stage_graph.targets[node]:
        taken = starts["forward", target]
        released = np.maximum(released, taken[:, source_replicas(taken.shape[1], released.shape[1])].max(axis=2))
    return released


def _peaks(
    owners: Int[np.ndarray, " e"],
    times: Float[np.ndarray, " e"],
    changes: Float[np.ndarray, " e"],
    count: int,
) -> Float[np.ndarray, " n"]:
    """For every owner, the highest sum of its changes so far; at one moment, what goes goes first."""
    order = np.lexsort((changes, times, owners))
    held = np.cumsum(changes[order])
    first = np.searchsorted(owners[order], np.arange(count))
    before = np.where(first > 0, held[first - 1], 0.0)
    return np.maximum.reduceat(held, first) - before
