"""What the forwards and backwards of a schedule take by the seconds of their stages, where hops take none."""

from sharding.plans.stage_graph import StageId
from sharding.schedules.ops import OpKind, Schedule


def pass_seconds(schedule: Schedule) -> float:
    """Seconds from the first forward to the end of the last op, if each starts as soon as its schedule allows.

    Args:
        schedule: A schedule whose op graph has the seconds of every stage.
    """
    op_graph, graph = schedule.op_graph, schedule.op_graph.stage_graph
    classes = graph.device_classes
    lanes = {
        rank: [number for number, members in enumerate(classes) if members[0] in devices]
        for rank, devices in graph.rank_devices.items()
    }
    free = [0.0] * len(classes)
    ends: dict[tuple[OpKind, StageId, int], float] = {}
    for op in schedule.ops:
        if op.kind not in ("forward", "backward"):
            continue
        stage = op.stage_id
        before = graph.sources[stage] if op.kind == "forward" else graph.targets[stage]
        inputs = [ends[op.kind, source, op.microbatch] for source in before]
        own = lanes[graph.rank_at(stage, op.microbatch)]
        end = max(*inputs, *(free[lane] for lane in own), 0.0) + op_graph.seconds[stage].of(op.kind)
        ends[op.kind, stage, op.microbatch] = end
        for lane in own:
            free[lane] = end
    return max(free)
