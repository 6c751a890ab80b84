"""A timeline as a page that stands alone: no server, no network, any browser."""

import json
import pathlib
from typing import Any

from sharding.plans.plan import device_ranges
from sharding.simulation.drawing import DrawnLane, DrawnOp, drawn_hops, drawn_lanes
from sharding.simulation.idle_time import IDLE_CAUSES
from sharding.simulation.timeline import Timeline

PAGE_KINDS = ("forward", "backward", "gather", "reduce", "update", "norm", "hop", "hop_back", "share", "share_back")
_FOLDER = pathlib.Path(__file__).parent


def html_page(timeline: Timeline, title: str) -> str:
    """The page, with the timeline's data in it as JSON.

    A lane is a physical stage, an op the mean over its instances; idle time can be coloured by cause.
    """
    data = json.dumps(page_data(timeline, title), separators=(",", ":")).replace("</", "<\\/")
    page = (_FOLDER / "timeline.html").read_text(encoding="utf-8")
    scripts = [(_FOLDER / name).read_text(encoding="utf-8") for name in ("timeline_tables.js", "timeline_chart.js")]
    return page.replace("__SCRIPT__", "\n".join(scripts)).replace("__DATA__", data)


def page_data(timeline: Timeline, title: str) -> dict[str, Any]:
    """What the page draws. Ops and hops are lists, because there are thousands: see `_op` for their entries."""
    causes = list(IDLE_CAUSES)
    hops = [
        [PAGE_KINDS.index(hop.op.kind), hop.op.microbatch, hop.source, hop.target, hop.op.stage, hop.op.target_stage]
        + [_digits(hop.start), _digits(hop.end)]
        for hop in drawn_hops(timeline)
    ]
    return {
        "title": title,
        "summary": timeline.summary(),
        "kinds": PAGE_KINDS,
        "causes": causes,
        "meanings": list(IDLE_CAUSES.values()),
        "lanes": [_lane(drawn, causes) for drawn in drawn_lanes(timeline)],
        "hops": hops,
    }


def _lane(drawn: DrawnLane, causes: list[str]) -> dict[str, Any]:
    unit, stage = drawn.lane.rank
    return {
        "unit": unit,
        "stage": stage,
        "chunks": len(drawn.lane.stages),
        "devices": device_ranges(sorted(drawn.lane.devices)),
        "instances": drawn.lane.replicas,
        "ops": [_op(op, causes) for op in drawn.ops],
        "rest": [[causes.index(cause), _digits(seconds)] for cause, seconds in drawn.idle_after.items()],
    }


def _op(op: DrawnOp, causes: list[str]) -> list[Any]:
    """Kind, microbatch, virtual stage, chunk, start, end, tensor, longest; then the gap's pairs (cause, seconds)."""
    gap = [[causes.index(cause), _digits(seconds)] for cause, seconds in op.idle_before.items()]
    times = [_digits(seconds) for seconds in (op.start, op.end, op.communication, op.slowest)]
    return [PAGE_KINDS.index(op.op.kind), op.op.microbatch, op.op.stage, op.chunk, *times, *gap]


def _digits(seconds: float) -> float:
    return round(seconds, 9)
