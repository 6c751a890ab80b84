"""A timeline as one self-contained page, and as a fragment for notebooks. Neither has a script."""

from sharding.html.elements import Html, element, join
from sharding.html.page import page
from sharding.simulation.pages.gathers_section import gathers_section
from sharding.simulation.pages.html_tables import (
    causes_table,
    filled_table,
    headline_figures,
    idle_legend,
    in_words,
    lanes_table,
    op_legend,
    units_table,
)
from sharding.simulation.pages.memory_section import memory_section
from sharding.simulation.pages.subject import subject_in_words
from sharding.simulation.pages.timeline_drawing import draw_timeline
from sharding.simulation.timeline import Timeline

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
_ZOOMING = (
    "To zoom, and for the seconds of every op, write the step as a trace (python -m mmjax.simulate --trace), and open "
    "it in ui.perfetto.dev."
)
_PRINTED = "@media print { details::details-content { content-visibility: visible; } }"


def html_page(timeline: Timeline, title: str) -> str:
    """The page.

    Args:
        timeline: The timeline that it shows.
        title: Its title, such as the model, the data, the cluster and the plan.
    """
    return page(
        title,
        _subject(timeline),
        element("p", in_words(timeline)),
        headline_figures(timeline),
        element("h2", f"The {timeline.kind} step"),
        op_legend(timeline),
        idle_legend(timeline),
        element("figure", draw_timeline(timeline), style="margin:10px 0"),
        element("p", f"{_reading(timeline)} {_ZOOMING}", class_="note"),
        _gathers(timeline),
        element("h2", "Memory of a device") if timeline.costs else "",
        memory_section(timeline),
        element("h2", "Idle time"),
        causes_table(timeline),
        filled_table(timeline),
        element("h2", "Units and stages"),
        units_table(timeline),
        element("details", element("summary", "Every stage"), lanes_table(timeline)),
        style=_PRINTED,
    )


def html_fragment(timeline: Timeline) -> Html:
    """The timeline for a notebook: without a script, a style sheet or an id, so that it may occur several times."""
    return element(
        "div",
        _subject(timeline),
        element("p", in_words(timeline)),
        op_legend(timeline),
        idle_legend(timeline),
        draw_timeline(timeline),
        element("p", _reading(timeline)),
        causes_table(timeline),
        filled_table(timeline),
        units_table(timeline),
        gathers_section(timeline) or "",
        memory_section(timeline),
    )


def _gathers(timeline: Timeline) -> Html:
    """The section of the gathers of fully sharded stages, if there are such."""
    section = gathers_section(timeline)
    return join([element("h2", "Gathers of fully sharded weights"), section] if section else [])


def _subject(timeline: Timeline) -> Html:
    """The subject of the timeline, if that is known."""
    if timeline.purpose is None:
        return join(())
    return element("p", subject_in_words(timeline.purpose, timeline.groups.device_count), class_="subject")


def _reading(timeline: Timeline) -> str:
    """Sentences that explain how to read the drawing."""
    is_compiled = bool(timeline.op_graph.stage_graph.compiled)
    return _READING + _SHARED * _is_shared(timeline) + _ONE_PROGRAM * is_compiled


def _is_shared(timeline: Timeline) -> bool:
    return sum(len(lane.devices) for lane in timeline.lanes) > timeline.groups.device_count
