"""Which unit of a step is the backbone, and which are the encoders that run in its bubbles."""

import dataclasses

from sharding.plans.resolved.stage_graph import PipelineRank, StageGraph
from sharding.schedules.ops import OpGraph


@dataclasses.dataclass(frozen=True)
class ColocatedUnits:
    """The units that a bubble schedule tells apart; all others are scheduled together with the backbone.

    Attributes:
        backbone: The unit with most work on the devices of several units.
        encoders: Units that share devices with it, whose outputs lead to units that are no encoders, and whose inputs
            come from encoders alone; in topological order.
    """

    backbone: str
    encoders: tuple[str, ...]


def colocated_units(op_graph: OpGraph) -> ColocatedUnits | None:
    """The backbone and its encoders; None where no encoder shares devices with a backbone.

    Generators stay with the backbone: its last stage waits for their gradients in the middle of the step.

    Args:
        op_graph: An op graph with the seconds of every stage.
    """
    graph = op_graph.stage_graph
    work = _work_on_shared_devices(op_graph)
    if not work:
        return None
    backbone = max(work, key=lambda unit: work[unit])
    held = _devices_of_units(graph)
    encoders = {unit for unit, devices in held.items() if devices & held[backbone]} - {backbone}
    while True:
        stages = [stage for stage in graph.stages if stage[0] in encoders]
        others = {
            unit
            for unit, number in stages
            if not graph.targets[unit, number]
            or any(source[0] not in encoders for source in graph.sources[unit, number])
        }
        if not others:
            break
        encoders -= others
    if not encoders:
        return None
    return ColocatedUnits(backbone, tuple(dict.fromkeys(unit for unit, _ in graph.stages if unit in encoders)))


def _devices_of_units(graph: StageGraph) -> dict[str, frozenset[int]]:
    held: dict[str, frozenset[int]] = {}
    for (unit, _), devices in graph.devices.items():
        held[unit] = held.get(unit, frozenset()) | devices
    return held


def _work_on_shared_devices(op_graph: OpGraph) -> dict[str, float]:
    """Device-seconds of every unit on devices that another unit has too."""
    graph = op_graph.stage_graph
    units: list[set[str]] = [
        {unit for (unit, _), devices in graph.rank_devices.items() if members[0] in devices}
        for members in graph.device_classes
    ]
    shared = frozenset(
        device
        for members, names in zip(graph.device_classes, units, strict=True)
        if len(names) > 1
        for device in members
    )
    common: dict[PipelineRank, int] = {rank: len(held & shared) for rank, held in graph.rank_devices.items()}
    work: dict[str, float] = {}
    for stage in graph.stages:
        seconds = op_graph.seconds[stage]
        microbatch_seconds = seconds.forward + seconds.backward * (stage in op_graph.backward_stages)
        for number in range(op_graph.microbatches):
            if devices := common[graph.rank_of_microbatch(stage, number)]:
                work[stage[0]] = work.get(stage[0], 0.0) + microbatch_seconds * devices
    return work


def without_units(op_graph: OpGraph, units: tuple[str, ...]) -> OpGraph:
    """The forwards and backwards of all other units, as if these gave their inputs at once."""
    graph = op_graph.stage_graph
    stages = {stage: devices for stage, devices in graph.devices.items() if stage[0] not in units}
    edges = tuple(edge for edge in graph.edges if edge[0] in stages and edge[1] in stages)
    rest = StageGraph(
        stages,
        edges,
        {unit: pp for unit, pp in graph.pp.items() if unit not in units},
        pipeline_replicas={
            unit: pipeline_replicas for unit, pipeline_replicas in graph.pipeline_replicas.items() if unit not in units
        },
    )
    return OpGraph(
        stage_graph=rest,
        microbatches=op_graph.microbatches,
        backward_stages=op_graph.backward_stages.intersection(stages),
        seconds={stage: op_graph.seconds[stage] for stage in stages},
        with_update=False,
    )
