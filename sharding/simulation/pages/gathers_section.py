"""Gathers and scatters of fully sharded stages in every pass, and how much of them computation hides."""

from collections.abc import Sequence

from sharding.costs.step_costs import ShardedPasses
from sharding.html.colours import BLUE, GREEN, ORANGE, PINK
from sharding.html.elements import Html, element, legend, table
from sharding.html.numbers import Number, percent, seconds, seconds_unit
from sharding.html.svg import Scale, bottom_axis, drawing, rectangle, text
from sharding.simulation.timeline import Lane, Timeline

_WIDTH, _NARROWEST, _LABELS, _BAR, _TOP = 820, 600, 236, 12, 4
_PASS = 2 * _BAR + 8  # pixels of the two bars of a pass and of what is between passes
_READING = (
    "A layer's weights are gathered while the layer before it computes, and its gradients are scattered while the next "
    "computes. Below a pass's computation stand its collectives: where both overlap, computation hides them, and what "
    "stands alone is exposed and lengthens the pass. All are means over microbatches and replicas; layers gather and "
    "compute by turns, and are drawn as one."
)


def gathers_section(timeline: Timeline) -> Html | None:
    """Gathers of fully sharded stages beside what hides them; None for a step without, or a measured one."""
    passes_by_lane = {lane: passes for lane in timeline.lanes if (passes := _of_lane(timeline, lane)) is not None}
    if not passes_by_lane:
        return None
    drawn = [
        max((lane for lane in lanes if lane in passes_by_lane), key=lambda lane: passes_by_lane[lane].exposed)
        for lanes in timeline.lanes_of_units.values()
        if any(lane in passes_by_lane for lane in lanes)
    ]
    return element(
        "div",
        element("p", _in_words(timeline, passes_by_lane)),
        legend(
            [
                (BLUE, "forward, computing"),
                (ORANGE, "backward, computing"),
                (PINK, "all-gather of weights"),
                (GREEN, "reduce-scatter of gradients"),
            ]
        ),
        _bars(drawn, passes_by_lane),
        element("p", _READING, class_="note"),
        _table(passes_by_lane),
        class_="gathers",
    )


def _of_lane(timeline: Timeline, lane: Lane) -> ShardedPasses | None:
    """The passes of all stages of a pipeline rank together; None without fully sharded ones."""
    if timeline.costs is None:
        return None
    stage_passes = [passes for stage in lane.stages if (passes := timeline.costs.stages[stage].sharded) is not None]
    return ShardedPasses().plus(*stage_passes) if stage_passes else None


def _in_words(timeline: Timeline, passes_by_lane: dict[Lane, ShardedPasses]) -> str:
    lane = max(passes_by_lane, key=lambda lane: passes_by_lane[lane].exposed)
    passes, replica_microbatches = passes_by_lane[lane], timeline.op_graph.microbatches / lane.pipeline_replicas
    return (
        f"Of each microbatch, {lane.name} takes {seconds(passes.collectives)} for its gathers and scatters, simulated. "
        f"Computation hides {percent(passes.hidden_share or 0.0)} of that; {seconds(passes.exposed)} remain exposed, "
        f"{percent(replica_microbatches * passes.exposed / timeline.step)} of the step over all its microbatches."
    )


def _bars(lanes: Sequence[Lane], passes_by_lane: dict[Lane, ShardedPasses]) -> Html:
    """Each pass begins with its exposed collectives, so that overlapping bars are what is hidden."""
    longest = max(
        max(
            times.forward + times.exposed_forward,
            times.backward + times.exposed_backward,
            times.gather,
            times.gather_again + times.scatter,
        )
        for times in (passes_by_lane[lane] for lane in lanes)
    )
    unit_seconds, unit = seconds_unit(longest)
    scale = Scale(0.0, max(longest / unit_seconds, 1e-9), _LABELS, _WIDTH - 12)
    shapes, top = [], _TOP
    for lane in lanes:
        lane_passes = passes_by_lane[lane]
        passes = {
            "forward": (
                BLUE,
                lane_passes.forward,
                lane_passes.exposed_forward,
                [(PINK, "all-gathers", lane_passes.gather)],
            ),
            "backward": (
                ORANGE,
                lane_passes.backward,
                lane_passes.exposed_backward,
                [(PINK, "all-gathers", lane_passes.gather_again), (GREEN, "reduce-scatters", lane_passes.scatter)],
            ),
        }
        for name, (colour, computing, exposed, collectives) in passes.items():
            shapes.append(text(0, top + _BAR + 4, f"{lane.name}, {name}"))
            shapes.append(_bar(scale, top, exposed / unit_seconds, computing / unit_seconds, colour, "computing"))
            before = 0.0
            for shade, words, taken in collectives:
                shapes.append(_bar(scale, top + _BAR, before / unit_seconds, taken / unit_seconds, shade, words))
                before += taken
            top += _PASS
    shapes.append(bottom_axis(scale, top, f"time of a microbatch in {unit}"))
    return drawing(_WIDTH, top + 38, "Collectives of weights beside computation", shapes, narrowest=_NARROWEST)


def _bar(scale: Scale, top: Number, start: Number, long: Number, colour: str, words: str) -> Html:
    return rectangle(scale(start), top, scale(start + long) - scale(start), _BAR - 1, colour, words)


def _table(passes_by_lane: dict[Lane, ShardedPasses]) -> Html:
    rows = [
        (
            lane.name,
            *map(
                seconds,
                (passes.gather, passes.gather_again, passes.scatter, passes.forward + passes.backward, passes.exposed),
            ),
            "" if passes.hidden_share is None else percent(passes.hidden_share),
        )
        for lane, passes in passes_by_lane.items()
    ]
    columns = (
        "stage",
        "#all-gathers, forward",
        "#all-gathers, backward",
        "#reduce-scatters",
        "#computing",
        "#exposed",
        "#hidden",
    )
    return table(columns, rows, "Collectives of weights in a simulated step, of a microbatch")
