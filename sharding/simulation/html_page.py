"""A timeline as one self-contained page, with a chart to zoom into, and as a fragment for notebooks."""

import pathlib
from collections.abc import Mapping
from typing import Any, get_args

from sharding.html.elements import Html, element, join
from sharding.html.page import embedded_json, page
from sharding.plans.device_ranges import device_ranges
from sharding.schedules.ops import OpKind
from sharding.simulation.drawing import DrawnLane, DrawnOp, Half, drawn_hops, drawn_lanes
from sharding.simulation.figures import (
    causes_table,
    filled_table,
    headline_figures,
    idle_legend,
    in_words,
    lanes_table,
    op_legend,
    units_table,
)
from sharding.simulation.gather_figures import gathers_section
from sharding.simulation.idle_time import IDLE_CAUSES, IdleCause
from sharding.simulation.memory_figures import memory_section
from sharding.simulation.op_colours import unit_colours
from sharding.simulation.overview import CAUSE_COLOURS, overview
from sharding.simulation.subject import subject_in_words
from sharding.simulation.timeline import Timeline

OP_KINDS: tuple[OpKind, ...] = get_args(OpKind)
_CAUSES = list(IDLE_CAUSES)
_HALVES: tuple[Half, ...] = get_args(Half)
_FOLDER = pathlib.Path(__file__).parent

_READING = (
    "A lane is the devices of a pipeline rank; beside its name stands their busy share. An op is drawn at the mean of "
    "its data-parallel replicas, and neighbouring microbatches differ in lightness. Low strips are idle time, in the "
    "colour of the cause."
)
_SHARED = (
    " Units share devices: a lane has the ops of all units on them, and the name of the one that computes most. Two "
    "ops of half a lane's height are one program."
)
_ONE_PROGRAM = (
    " A pipeline that is one program, or one of forwards and one of backwards, is drawn in the place of its last "
    "microbatch, and counts as busy throughout: ranks without an op in a tick run one all the same, of which nothing "
    "is kept. Its bubble is not counted as idle time."
)
_KEYS = (
    "The wheel zooms and dragging moves. On the keyboard: Tab to the chart, arrow keys from op to op and from lane to "
    "lane, + and − to zoom, Shift with arrow keys to move, 0 for the whole step, Escape to close the description. An "
    "op's description says where its inputs come from and why the lane was idle before it."
)


def html_page(timeline: Timeline, title: str) -> str:
    """The page. Without scripts, and on paper, it shows the whole step as a drawing.

    Args:
        timeline: What it shows.
        title: Its title, such as the model, the data, the cluster and the plan.
    """
    reading = element("p", _reading(timeline), class_="note")
    return page(
        title,
        _subject(timeline),
        element("p", in_words(timeline)),
        headline_figures(timeline),
        element("h2", f"The {timeline.kind} step"),
        op_legend(timeline),
        idle_legend(timeline),
        element("figure", overview(timeline), class_="overview"),
        _chart(),
        reading,
        element("p", _KEYS, class_="note keys", hidden=True),
        _gathers(timeline),
        element("h2", "Memory of a device") if timeline.costs else "",
        memory_section(timeline),
        element("h2", "Idle time"),
        causes_table(timeline),
        filled_table(timeline),
        element("h2", "Units and stages"),
        units_table(timeline),
        element("details", element("summary", "Every stage"), lanes_table(timeline)),
        element("div", id="tip", role="status"),
        embedded_json("data", page_data(timeline)),
        style=(_FOLDER / "timeline.css").read_text(encoding="utf-8"),
        script=(_FOLDER / "timeline_chart.js").read_text(encoding="utf-8"),
    )


def html_fragment(timeline: Timeline) -> Html:
    """The timeline for a notebook: without a script, a style sheet or an id, so that it may occur several times."""
    return element(
        "div",
        _subject(timeline),
        element("p", in_words(timeline)),
        op_legend(timeline),
        idle_legend(timeline),
        overview(timeline),
        element("p", _reading(timeline)),
        causes_table(timeline),
        filled_table(timeline),
        units_table(timeline),
        gathers_section(timeline) or "",
        memory_section(timeline),
    )


def _gathers(timeline: Timeline) -> Html:
    """What fully sharded stages gather, if there are such."""
    section = gathers_section(timeline)
    return join([element("h2", "Gathers of fully sharded weights"), section] if section else [])


def _subject(timeline: Timeline) -> Html:
    """What the timeline is a step of, if that is known."""
    if timeline.purpose is None:
        return join(())
    return element("p", subject_in_words(timeline.purpose, timeline.groups.device_count), class_="subject")


def _reading(timeline: Timeline) -> str:
    """How to read the drawing."""
    is_compiled = bool(timeline.op_graph.stage_graph.compiled)
    return _READING + _SHARED * _is_shared(timeline) + _ONE_PROGRAM * is_compiled


def _is_shared(timeline: Timeline) -> bool:
    return sum(len(lane.devices) for lane in timeline.lanes) > timeline.groups.device_count


def _chart() -> Html:
    """What the script draws the chart in; hidden until it does."""
    controls = element(
        "div",
        element("button", "Whole step", id="fit", type="button"),
        element("button", "+", id="closer", type="button", aria_label="Zoom in"),
        element("button", "−", id="farther", type="button", aria_label="Zoom out"),
        element("label", element("input", type="checkbox", id="fade"), " Highlight idle time"),
        class_="controls",
    )
    lanes = element("div", element("div", id="labels"), element("canvas", id="lanes"), id="body")
    chart = element(
        "div",
        element("canvas", id="axis", height=28),
        lanes,
        id="chart",
        tabindex=0,
        role="application",
        aria_label="Timeline. Arrow keys move from op to op and from lane to lane.",
        aria_describedby="tip",
    )
    return element("div", controls, chart, id="interactive", hidden=True)


def page_data(timeline: Timeline) -> dict[str, Any]:
    """The data that the chart draws. Ops and hops are lists, because there are thousands: see `_op` and `_hops`."""
    units, colours = list(timeline.lanes_of_units), unit_colours(timeline)
    return {
        "step": timeline.step,
        "kinds": OP_KINDS,
        "units": units,
        "colours": [[colours[unit].get(kind, "") for kind in OP_KINDS] for unit in units],
        "causes": _CAUSES,
        "cause_colours": list(CAUSE_COLOURS.values()),
        "explanations": list(IDLE_CAUSES.values()),
        "lanes": [_lane(drawn, timeline.step, units) for drawn in drawn_lanes(timeline)],
        "hops": _hops(timeline, units),
    }


def _lane(drawn: DrawnLane, step: float, units: list[str]) -> dict[str, Any]:
    return {
        "unit": drawn.unit,
        "name": drawn.name,
        "ranks": [
            {
                "unit": units.index(rank.rank[0]),
                "name": rank.name,
                "chunks": len(rank.stages),
                "replicas": rank.replicas,
            }
            for rank in drawn.ranks
        ],
        "busy": round(drawn.busy / step, 6),
        "devices": device_ranges(drawn.devices),
        "ops": [_op(op, units) for op in drawn.ops],
        "idle_after": _idle(drawn.idle_after),
    }


def _op(op: DrawnOp, units: list[str]) -> list[Any]:
    """Kind, microbatch, unit, virtual stage, chunk, half, start, end, communication, slowest; then the idle time.

    The unit of the norm is -1. Idle time is pairs (cause, seconds).
    """
    times = [_rounded(seconds) for seconds in (op.start, op.end, op.communication, op.slowest)]
    unit = units.index(op.op.unit) if op.op.unit else -1
    place = [unit, op.op.stage, op.chunk, _HALVES.index(op.half)]
    return [OP_KINDS.index(op.op.kind), op.op.microbatch, *place, *times, *_idle(op.idle_before)]


def _hops(timeline: Timeline, units: list[str]) -> list[list[Any]]:
    """Of each hop: kind, microbatch, source lane, source stage, target unit, target stage, start, end."""
    return [
        [OP_KINDS.index(hop.op.kind), hop.op.microbatch, hop.source, hop.op.stage]
        + [units.index(hop.op.target_unit), hop.op.target_stage, _rounded(hop.start), _rounded(hop.end)]
        for hop in drawn_hops(timeline)
    ]


def _idle(seconds: Mapping[IdleCause, float]) -> list[list[Any]]:
    return [[_CAUSES.index(cause), _rounded(value)] for cause, value in seconds.items()]


def _rounded(seconds: float) -> float:
    return round(seconds, 9)
