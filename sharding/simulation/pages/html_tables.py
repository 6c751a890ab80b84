"""A timeline's figures as HTML: in words, by cause of idle time with an explanation of each, by unit and by lane."""

from sharding.costs.published_errors import StepRange
from sharding.html.colours import BLUE, EMPTY, GREY
from sharding.html.elements import Html, element, figures, join, legend, swatch, table
from sharding.html.numbers import count, percent, seconds, seconds_range, size
from sharding.html.svg import rectangle
from sharding.plans.text.device_ranges import device_ranges
from sharding.schedules.ops import OpKind
from sharding.simulation.idle.filled_idle import FilledIdle
from sharding.simulation.idle.idle_time import IDLE_CAUSES
from sharding.simulation.pages.op_colours import KIND_COLOURS, unit_colours
from sharding.simulation.pages.timeline_drawing import CAUSE_COLOURS
from sharding.simulation.timeline import Timeline

_BAR = 110  # pixels of a whole step
_NAMED_CAUSES = 2
_SMALLEST_EFFICIENCY = 0.0005  # shown as 0.1%
_ROUNDING = 1e-9  # share of a step below which idle time is an error of rounding


def in_words(timeline: Timeline) -> str:
    """The step in two sentences: how long it takes, how much of it computes, and the largest causes of idle time.

    The first says whether the step was simulated or measured, because sentences are quoted alone.
    """
    step, idle = timeline.step, sorted(timeline.idle.items(), key=lambda item: -item[1])
    named = [f"{cause} ({percent(lost / step)})" for cause, lost in idle[:_NAMED_CAUSES] if lost > 0]
    causes = f"; most idle time is lost to {' and '.join(named)}" if named else ""
    busy = percent(timeline.busy / step)
    range_ = f" ({range_in_words(timeline.step_range)})" if timeline.step_range else ""
    return f"A {timeline.kind} step takes {seconds(step)}{range_}. Devices compute for {busy} of it{causes}."


def range_in_words(step_range: StepRange) -> str:
    """The range of a simulated step, and what it comes from."""
    return f"{range_in_figures(step_range)} by the errors on {step_range.runs} published runs"


def range_in_figures(step_range: StepRange | None) -> str:
    """The ends of a simulated step's range; empty where there is none."""
    return seconds_range(step_range.least, step_range.most) if step_range else ""


def headline_figures(timeline: Timeline) -> Html:
    """Step time, of a simulated step its range, MFU and throughput, devices and microbatches."""
    rates = []
    if timeline.costs is not None:
        recomputes = timeline.costs.recomputed.flops > 0
        recomputed = [("the same with recomputation", percent(timeline.hfu_whole_squares))] if recomputes else []
        rates = [
            ("MFU of the FP8 peak" if timeline.costs.uses_fp8 else "MFU", percent(timeline.mfu)),
            ("MFU, causal squares whole", percent(timeline.mfu_whole_squares)),
            *recomputed,
            ("tokens per second", count(round(timeline.tokens_per_second))),
        ]
    range_ = range_in_figures(timeline.step_range)
    return figures(
        [
            (f"{timeline.kind} step", seconds(timeline.step)),
            *([("its range by published runs", range_)] if range_ else []),
            *rates,
            ("devices", count(timeline.groups.device_count)),
            ("microbatches", count(timeline.op_graph.microbatches)),
            ("busy", percent(timeline.busy / timeline.step)),
        ]
    )


def causes_table(timeline: Timeline) -> Html:
    """Busy time, and idle time by cause with a sentence about each; causes that take no time are left out."""
    step = timeline.step
    rows = [_cause_row("busy", timeline.busy, step, BLUE, "Forwards, backwards, wgrads and optimizer updates.")]
    rows += [
        _cause_row(cause, lost, step, CAUSE_COLOURS[cause], IDLE_CAUSES[cause])
        for cause, lost in timeline.idle.items()
        if lost > _ROUNDING * step
    ]
    columns = ("", "#share", "#time", "", "why devices are idle")
    return table(columns, rows, f"Where the time of a {timeline.kind} step goes, the mean over all devices")


def _cause_row(name: str, lost: float, step: float, colour: str, sentence: str) -> tuple[str, ...]:
    shown = element("span", swatch(colour), f" {name}", style="white-space:nowrap")
    return shown, percent(lost / step), seconds(lost), _bar(lost / step, colour), sentence


def _bar(share: float, colour: str) -> Html:
    shapes = (rectangle(0, 0, _BAR, 10, EMPTY), rectangle(0, 0, _BAR * share, 10, colour))
    return element("svg", shapes, width=_BAR, height=10, aria_hidden="true")


def units_table(timeline: Timeline) -> Html:
    """Devices and busy share of every unit; of a simulated step MFU and memory too."""
    rows = []
    for unit, lanes in timeline.lanes_of_units.items():
        busy = timeline.busy_by_unit[unit] / timeline.step
        devices = count(len({device for lane in lanes for device in lane.devices}))
        row = (unit, devices, str(len(lanes)), percent(busy), _bar(busy, BLUE))
        if timeline.costs is not None:
            memory = max(timeline.lane_peak_memory(lane) for lane in lanes)
            row += (percent(timeline.mfu_by_unit[unit]), size(memory))
        rows.append(row)
    simulated = () if timeline.costs is None else ("#MFU", "#memory a device")
    return table(("unit", "#devices", "#stages", "#busy", "", *simulated), rows, f"Units in a {timeline.kind} step")


def lanes_table(timeline: Timeline) -> Html:
    """Devices, replicas, busy and idle share of every lane; of a simulated step peak memory too."""
    rows = []
    for lane in timeline.lanes:
        busy, idle = timeline.lane_busy(lane), sum(timeline.lane_idle(lane).values())
        shares = (percent(busy / timeline.step), percent(idle / timeline.step))
        devices = (count(len(lane.devices)), device_ranges(sorted(lane.devices)))
        sizes = (str(lane.replicas), str(len(lane.stages)))
        memory = () if timeline.costs is None else (size(timeline.lane_peak_memory(lane)),)
        rows.append((lane.name, *devices, *sizes, *shares, *memory))
    simulated, title = () if timeline.costs is None else ("#memory a device",), f"Stages in a {timeline.kind} step"
    return table(("stage", "#devices", "numbers", "#replicas", "#chunks", "#busy", "#idle", *simulated), rows, title)


def filled_table(timeline: Timeline) -> Html:
    """Idle time by cause of units on whose devices others compute, and how much of it the others fill."""
    tables = []
    for unit_idle in timeline.filled_idle:
        rows = [
            _filled_row(cause, lost, unit_idle.filled[cause], timeline.step, CAUSE_COLOURS[cause])
            for cause, lost in unit_idle.idle.items()
            if lost > _ROUNDING * timeline.step
        ]
        rows.append(
            _filled_row("all", sum(unit_idle.idle.values()), sum(unit_idle.filled.values()), timeline.step, GREY)
        )
        tables.append(table(("", "#share of the step", "#filled", ""), rows, filled_title(unit_idle)))
        if said := efficiency_in_words(unit_idle):
            tables.append(element("p", said))
    return join(tables)


def filled_title(unit_idle: FilledIdle) -> str:
    """The caption of a table of filled idle time."""
    return f"Idle time of {unit_idle.unit} if it were alone on its devices, filled by {' and '.join(unit_idle.others)}"


def efficiency_in_words(unit_idle: FilledIdle) -> str:
    """The scheduling efficiency of a simulated step, and what it means; nothing where all work lengthens the step."""
    if not unit_idle.scheduling_efficiency or unit_idle.scheduling_efficiency < _SMALLEST_EFFICIENCY:
        return ""
    return (
        f"Scheduling efficiency: {percent(unit_idle.scheduling_efficiency)} of the work of "
        f"{' and '.join(unit_idle.others)} on the devices of {unit_idle.unit} runs in time that these would otherwise "
        "idle, and adds nothing to the step."
    )


def _filled_row(name: str, lost: float, filled: float, step: float, colour: str) -> tuple[str, ...]:
    shown = element("span", swatch(colour), f" {name}", style="white-space:nowrap")
    return (
        shown,
        percent(lost / step),
        percent(filled / lost) if lost else "",
        _bar(filled / lost if lost else 0.0, colour),
    )


def op_legend(timeline: Timeline) -> Html:
    """The colours of the kinds of ops that the timeline draws, and of the units on the devices of others."""
    drawn: set[OpKind] = {span.op.kind for span in timeline.spans}
    if not timeline.rendezvous:
        drawn = {kind for kind in drawn if KIND_COLOURS.get(kind) != KIND_COLOURS["hop"]}
    entries = [(colour, kind) for kind, colour in KIND_COLOURS.items() if kind in drawn]
    for unit, colours in unit_colours(timeline).items():
        kinds = {span.op.kind for span in timeline.spans if span.op.unit == unit}
        entries += [
            (colour, f"{kind} of {unit}")
            for kind, colour in colours.items()
            if kind in kinds and colour != KIND_COLOURS[kind]
        ]
    return legend(entries)


def idle_legend(timeline: Timeline) -> Html:
    """The colours of the causes of idle time that the timeline draws; `causes_table` explains them."""
    drawn = {cause for period in timeline.idle_periods if not period.within_span for cause in period.seconds}
    causes = {cause for cause, lost in timeline.idle.items() if cause in drawn and lost > 0}
    return legend((colour, f"idle: {cause}") for cause, colour in CAUSE_COLOURS.items() if cause in causes)
