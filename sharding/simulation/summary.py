"""The figures of a timeline for JSON: what commands print with `--json`, and the metadata of a trace.

Commands and the Perfetto trace call `timeline_summary`.
"""

from typing import Any

from sharding.simulation.idle.filled_idle import FilledIdle
from sharding.simulation.timeline import Lane, Timeline


def timeline_summary(timeline: Timeline) -> dict[str, Any]:
    """The figures of a timeline, in seconds, shares of the step and bytes: by cause, by unit and by pipeline rank.

    Of units that share devices also how much of their idle time is filled (`FilledIdle`). A measured timeline is
    without MFU, tokens per second and memory.
    """
    costs = timeline.costs
    simulated = costs is not None
    return {
        "step_seconds": timeline.step,
        "devices": timeline.groups.device_count,
        "microbatches": timeline.op_graph.microbatches,
        **(
            {
                "step_range_seconds": timeline.step_range and timeline.step_range[:2],
                "mfu": timeline.mfu,
                "mfu_peak": "fp8" if costs.uses_fp8 else "bfloat16",
                "mfu_whole_squares": timeline.mfu_whole_squares,
                "hfu": timeline.hfu,
                "hfu_whole_squares": timeline.hfu_whole_squares,
                "tokens_per_second": timeline.tokens_per_second,
            }
            if simulated
            else {}
        ),
        "busy": {"seconds": timeline.busy, "share": timeline.busy / timeline.step},
        "idle": {cause: {"seconds": s, "share": s / timeline.step} for cause, s in timeline.idle.items()},
        "units": [
            {
                "unit": unit,
                "busy_seconds": busy,
                **({"mfu": timeline.mfu_by_unit[unit]} if simulated else {}),
            }
            for unit, busy in timeline.busy_by_unit.items()
        ],
        "filled_idle": [_filled_summary(unit_idle) for unit_idle in timeline.filled_idle],
        "stages": [_lane_summary(timeline, lane) for lane in timeline.lanes],
    }


def _lane_summary(timeline: Timeline, lane: Lane) -> dict[str, Any]:
    return {
        "unit": lane.rank[0],
        "pipeline_replica": lane.pipeline_replica,
        "stage": lane.stage,
        "chunks": len(lane.stages),
        "devices": len(lane.devices),
        "replicas": lane.replicas,
        "busy_seconds": timeline.lane_busy(lane),
        "idle_seconds": timeline.lane_idle(lane),
        **({} if timeline.costs is None else {"memory_bytes": timeline.lane_peak_memory(lane)}),
    }


def _filled_summary(unit_idle: FilledIdle) -> dict[str, Any]:
    return {
        "unit": unit_idle.unit,
        "others": list(unit_idle.others),
        "filled_share": unit_idle.filled_share,
        **(
            {}
            if unit_idle.scheduling_efficiency is None
            else {"scheduling_efficiency": unit_idle.scheduling_efficiency}
        ),
        "idle": {
            cause: {
                "seconds": idle,
                "filled_seconds": unit_idle.filled[cause],
                "filled_share": unit_idle.filled[cause] / idle if idle else 0.0,
            }
            for cause, idle in unit_idle.idle.items()
        },
    }
