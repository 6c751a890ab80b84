"""The peak memory of a step: the most bytes that devices hold at any moment.

`Timeline` computes its memory here for simulated steps.
"""

import collections
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from jaxtyping import Float, Int

from sharding.costs.step_costs import StageCosts
from sharding.plans.resolved.device_groups import DeviceGroups, latest_of_sources
from sharding.plans.resolved.stage_graph import StageGraph, StageId
from sharding.schedules.ops import COMPUTE_KINDS, OpGraph, OpKind
from sharding.simulation.op_spans.spans import Span


def peak_memory(
    op_graph: OpGraph, groups: DeviceGroups, stages: Mapping[StageId, StageCosts], spans: Sequence[Span]
) -> Float[np.ndarray, " n"]:
    """Peak bytes on a device of each group, over all the stages that it holds.

    A stage that runs a backward holds `StageCosts.saved_bytes` of a microbatch from the start of its forward to the end
    of its backward; where the wgrad is an op of its own to the end of the wgrad, and from the start of its backward on
    `WgradCosts.saved_bytes` too. A stage that runs none holds them until every replica that it feeds has started its
    forward. A pipeline replica holds only the microbatches that it takes. A stage whose passes are programs holds what
    it saves of all microbatches from the start of the first program to the end of the last.

    Args:
        op_graph: The ops of the step.
        groups: Its devices, by the parts of replicas whose bytes are given (`StageCosts.parts`).
        stages: Costs of every stage.
        spans: When each op ran.
    """
    static = static_memory(groups, stages).sum(axis=1)
    saved = {stage: costs.saved_bytes for stage, costs in stages.items()}
    for_wgrads = {stage: costs.wgrad.saved_bytes for stage, costs in stages.items() if costs.wgrad is not None}
    return static + _most_saved(op_graph, groups, saved, spans, for_wgrads)


def static_memory(groups: DeviceGroups, stages: Mapping[StageId, StageCosts]) -> Float[np.ndarray, "n kinds"]:
    """Bytes on a device of each group at all times, over all the stages that it holds, by kind (`StaticBytes`)."""
    return _over_stages(groups, {stage: costs.static for stage, costs in stages.items()})


def _over_stages(groups: DeviceGroups, figures: Mapping[StageId, Sequence[float]]) -> Float[np.ndarray, "n kinds"]:
    """Sums figures of a stage's devices, on a device of each group over all the stages that it holds."""
    sums = np.zeros((len(groups.sizes), len(next(iter(figures.values())))))
    for stage, stage_groups in groups.groups_of.items():
        np.add.at(sums, stage_groups[np.nonzero(groups.is_first[stage])], figures[stage])
    return sums


def peak_host_memory(
    op_graph: OpGraph, groups: DeviceGroups, stages: Mapping[StageId, StageCosts], spans: Sequence[Span]
) -> Float[np.ndarray, " n"]:
    """Peak bytes in the host memory of a device of each group: optimizer state and offloaded activations.

    Takes the arguments of `peak_memory`.
    """
    static = _over_stages(groups, {stage: [costs.host_bytes] for stage, costs in stages.items()})[:, 0]
    offloaded = {stage: costs.offloaded_bytes for stage, costs in stages.items()}
    if not any(stage_bytes.any() for stage_bytes in offloaded.values()):
        return static
    return static + _most_saved(op_graph, groups, offloaded, spans)


def _most_saved(
    op_graph: OpGraph,
    groups: DeviceGroups,
    saved_bytes: Mapping[StageId, Float[np.ndarray, "m _"]],
    spans: Sequence[Span],
    for_wgrads: Mapping[StageId, Float[np.ndarray, "m _"]] = MappingProxyType({}),
) -> Float[np.ndarray, " n"]:
    """The most bytes that a device of each group has saved at any moment, given the bytes of each microbatch.

    Bytes are given apart for what is saved from the forward on, and for what is saved from the backward on.
    """
    graph = op_graph.stage_graph
    starts, ends = _by_stage(spans, graph)
    owners, times, changes = [], [], []  # a column for every stage of every group: its microbatches' ends and starts
    for stage, stage_groups in groups.groups_of.items():
        part, column = np.nonzero(groups.is_first[stage])
        group = stage_groups[part, column]
        pipeline_replica, part_of_copy = np.divmod(part, len(stage_groups) // graph.pipeline_replica_count(stage[0]))
        taken_by = np.array(
            [graph.pipeline_replica_of_microbatch(stage[0], number) for number in range(op_graph.microbatches)]
        )
        replica = part_of_copy // (saved_bytes[stage].shape[1] // starts["forward", stage].shape[1])
        released = _release_times(op_graph, starts, ends, stage)
        from_pass: dict[OpKind, Mapping[StageId, Float[np.ndarray, "m _"]]] = {
            "forward": saved_bytes,
            "backward": for_wgrads,
        }
        for kind, by_stage in from_pass.items():
            if stage in by_stage:
                saved = by_stage[stage][:, part_of_copy] * (taken_by[:, None] == pipeline_replica)
                owners.append(group)
                times.append(np.concatenate([released, starts[kind, stage]])[:, replica])
                changes.append(np.concatenate([-saved, saved]))
    joined = [np.concatenate(arrays, axis=-1) for arrays in (owners, times, changes)]
    return _peaks(joined[0], joined[1], joined[2], len(groups.sizes))


_Table = Mapping[tuple[OpKind, StageId], Float[np.ndarray, "m _"]]


def _by_stage(spans: Sequence[Span], graph: StageGraph) -> tuple[_Table, _Table]:
    """Start and end of every stage's ops of `COMPUTE_KINDS`, as [microbatches, replicas].

    Of a program that runs all microbatches, start and end of the last.
    """
    by_microbatch: dict[tuple[OpKind, StageId], dict[int, Span]] = collections.defaultdict(dict)
    for span in spans:
        if span.op.kind in COMPUTE_KINDS:
            by_microbatch[span.op.kind, span.op.stage_id][span.op.microbatch] = span

    def moments_table(stage: StageId, moments: list[Float[np.ndarray, " i"]]) -> Float[np.ndarray, "m i"]:
        table = np.stack(moments)
        return np.broadcast_to(table.max(axis=0), table.shape) if stage in graph.compiled else table

    ordered = {
        key: [stage_spans[number] for number in sorted(stage_spans)] for key, stage_spans in by_microbatch.items()
    }
    return (
        {key: moments_table(key[1], [span.start for span in stage_spans]) for key, stage_spans in ordered.items()},
        {key: moments_table(key[1], [span.end for span in stage_spans]) for key, stage_spans in ordered.items()},
    )


def _release_times(op_graph: OpGraph, starts: _Table, ends: _Table, stage: StageId) -> Float[np.ndarray, "m i"]:
    """When each replica of a stage releases what it saved of each microbatch."""
    if stage in op_graph.backward_stages:
        return ends[op_graph.last_pass(stage), stage]
    released = ends["forward", stage]
    for target in op_graph.stage_graph.targets[stage]:
        taken = starts["forward", target]
        exchanged = op_graph.stage_graph.is_exchange(stage, target)
        released = np.maximum(released, latest_of_sources(taken, released.shape[1], exchanged))
    return released


def _peaks(
    owners: Int[np.ndarray, " c"],
    times: Float[np.ndarray, "e c"],
    changes: Float[np.ndarray, "e c"],
    count: int,
) -> Float[np.ndarray, " n"]:
    """For every owner, the highest running sum of the changes in its columns.

    Releases, which come first in the columns, also come first of the changes at one moment.
    """
    peaks, columns_of = np.zeros(count), np.bincount(owners, minlength=count)
    by_owner = np.argsort(owners, kind="stable")
    first = np.cumsum(columns_of) - columns_of
    for width in np.unique(columns_of):  # owners with equally many columns are sorted at once
        alike = np.flatnonzero(columns_of == width)
        columns = by_owner[first[alike, None] + np.arange(width)]
        times_of, changes_of = (
            table[:, columns].transpose(1, 0, 2).reshape(len(alike), -1) for table in (times, changes)
        )
        order = np.argsort(times_of, axis=1, kind="stable")
        peaks[alike] = np.take_along_axis(changes_of, order, axis=1).cumsum(axis=1).max(axis=1)
    return peaks
