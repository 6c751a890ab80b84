"""A timeline as one self-contained HTML file, which needs no server and no network."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, get_args

from sharding.plans.plan import device_ranges
from sharding.schedules.ops import OpKind
from sharding.simulation.drawing import DrawnLane, DrawnOp, drawn_hops, drawn_lanes
from sharding.simulation.idle_time import IDLE_CAUSES, IdleCause
from sharding.simulation.timeline import Timeline

OP_KINDS: tuple[OpKind, ...] = get_args(OpKind)
_CAUSES = list(IDLE_CAUSES)
_FOLDER = pathlib.Path(__file__).parent


def html_page(timeline: Timeline, title: str) -> str:
    """The page, with the timeline's data in it as JSON.

    A row is a lane of the timeline; an op is drawn at the mean of its replicas. Idle time can be coloured by cause.
    """
    data = json.dumps(page_data(timeline, title), separators=(",", ":")).replace("</", "<\\/")
    page = (_FOLDER / "timeline.html").read_text(encoding="utf-8")
    scripts = [(_FOLDER / name).read_text(encoding="utf-8") for name in ("timeline_tables.js", "timeline_chart.js")]
    return page.replace("__SCRIPT__", "\n".join(scripts)).replace("__DATA__", data)


def page_data(timeline: Timeline, title: str) -> dict[str, Any]:
    """The data that the page draws. Ops and hops are lists, because there are thousands: see `_op` and `_hops`."""
    return {
        "title": title,
        "summary": timeline.summary(),
        "kinds": OP_KINDS,
        "causes": _CAUSES,
        "meanings": list(IDLE_CAUSES.values()),
        "lanes": [_lane(drawn) for drawn in drawn_lanes(timeline)],
        "hops": _hops(timeline),
    }


def _lane(drawn: DrawnLane) -> dict[str, Any]:
    unit, stage = drawn.lane.rank
    return {
        "unit": unit,
        "stage": stage,
        "chunks": len(drawn.lane.stages),
        "devices": device_ranges(sorted(drawn.lane.devices)),
        "replicas": drawn.lane.replicas,
        "ops": [_op(op) for op in drawn.ops],
        "idle_after": _idle(drawn.idle_after),
    }


def _op(op: DrawnOp) -> list[Any]:
    """Kind, microbatch, virtual stage, chunk, start, end, communication, slowest; then pairs (cause, idle seconds)."""
    times = [_rounded(seconds) for seconds in (op.start, op.end, op.communication, op.slowest)]
    return [OP_KINDS.index(op.op.kind), op.op.microbatch, op.op.stage, op.chunk, *times, *_idle(op.idle_before)]


def _hops(timeline: Timeline) -> list[list[Any]]:
    """Of each hop: kind, microbatch, source lane, target lane, source stage, target stage, start, end."""
    return [
        [OP_KINDS.index(hop.op.kind), hop.op.microbatch, hop.source, hop.target, hop.op.stage, hop.op.target_stage]
        + [_rounded(hop.start), _rounded(hop.end)]
        for hop in drawn_hops(timeline)
    ]


def _idle(seconds: Mapping[IdleCause, float]) -> list[list[Any]]:
    return [[_CAUSES.index(cause), _rounded(value)] for cause, value in seconds.items()]


def _rounded(seconds: float) -> float:
    return round(seconds, 9)
