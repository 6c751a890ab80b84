"""The section of a run's page with its simulated and its measured step, one under the other."""

import statistics

from configs.common.errors import UserError
from mmjax.reporting.predicted_step import PredictedTimeline
from mmjax.reporting.run_folder import Run
from mmjax.reporting.run_records import is_number
from sharding.html.elements import Html, element, table
from sharding.html.numbers import percent, seconds
from sharding.simulation.pages.html_tables import causes_table, idle_legend, in_words, op_legend, range_in_figures
from sharding.simulation.pages.timeline_drawing import draw_timeline
from sharding.simulation.timeline import Timeline

_ONE_SCALE = 2.0
"""Two steps are drawn on one scale if the longer takes at most this many times as long as the shorter."""

_TIME_PARTS = {
    "seconds/wall": "the whole step, as measured",
    "seconds/data": "waiting for the next batch",
    "seconds/dispatch": "launching programs, while devices already work",
    "seconds/device": "waiting for the devices after everything is launched",
    "seconds/other": "the rest: logging, saving",
}
_MEASURED = (
    "The ends of ops are measured. The starts are derived: an op starts when its launch began, when its devices had "
    "finished the op before it, or when its inputs had arrived, whichever is last. Waiting inside an op counts as busy."
)
_EMULATED = (
    "The devices share the cores of one host and slow each other, which the simulation does not know: compare who "
    "waits for whom, not seconds."
)


def typical(run: Run, name: str) -> float | None:
    """The median of a metric over the reports; None without any."""
    values = [line[name] for line in run.metrics if is_number(line.get(name))]
    return statistics.median(values) if values else None


def step_section(run: Run, predicted: PredictedTimeline | str) -> list[Html]:
    """Shows both timelines, busy shares by unit, and the times of steps as the host measures them.

    Args:
        run: The run.
        predicted: A simulated step of its plan, or why there is none.
    """
    try:
        measured, missing = run.measured_step, "no step of this run is recorded yet"
    except UserError as error:
        measured, missing = None, str(error)
    steps = [item.timeline for item in (predicted, measured) if item is not None and not isinstance(item, str)]
    longest, shortest = (pick((timeline.step for timeline in steps), default=0.0) for pick in (max, min))
    scale = longest if longest <= _ONE_SCALE * shortest else None
    parts: list[Html] = []
    if isinstance(predicted, str):
        parts.append(element("p", f"The step is not simulated: {predicted.rstrip('.')}."))
    else:
        parts += _drawn(f"Simulated with {predicted.costs}", predicted.timeline, scale)
    if measured is None:
        parts.append(element("p", f"There is no measured timeline: {missing.rstrip('.')}."))
    else:
        parts += _drawn(f"Measured, step {measured.step}", measured.timeline, scale, element("p", _MEASURED))
    if measured is not None and not isinstance(predicted, str):
        parts += [element("h3", "Both")]
        parts += [element("p", _compared(predicted.timeline, measured.timeline, scale is not None))]
        parts += [_busy_shares(predicted.timeline, measured.timeline)]
    if _is_emulated(run):
        parts.append(element("p", _EMULATED))
    return [*parts, element("h3", "Every step, as the host measures it"), _host_times(run)]


def _drawn(title: str, timeline: Timeline, scale: float | None, *remarks: Html) -> list[Html]:
    return [
        element("h3", title),
        element("p", in_words(timeline)),
        draw_timeline(timeline, scale),
        element("div", op_legend(timeline), idle_legend(timeline)),
        *remarks,
        element("details", element("summary", "Where the time goes"), causes_table(timeline)),
    ]


def _compared(predicted: Timeline, measured: Timeline, one_scale: bool) -> str:
    ratio, range_ = measured.step / predicted.step, range_in_figures(predicted.step_range)
    scales = "Both are drawn on one scale." if one_scale else "Each is drawn on a scale of its own."
    return (
        f"The measured step took {seconds(measured.step)}, {ratio:#.3g} times the simulated {seconds(predicted.step)}"
        f"{f' ({range_})' if range_ else ''}. "
        f"{scales} Busy shares are of the step in question."
    )


def _busy_shares(predicted: Timeline, measured: Timeline) -> Html:
    both = (predicted, measured)
    rows = [
        (unit, *(percent(timeline.busy_by_unit[unit] / timeline.step) for timeline in both))
        for unit in predicted.busy_by_unit
        if unit in measured.busy_by_unit
    ]
    rows.append(("all devices", *(percent(timeline.busy / timeline.step) for timeline in both)))
    return table(("unit", "#busy, simulated", "#busy, measured"), rows)


def _host_times(run: Run) -> Html:
    """Tabulates the phases of steps as medians, because some steps also save or are recorded."""
    times = [(words, value) for name, words in _TIME_PARTS.items() if (value := typical(run, name)) is not None]
    if not times:
        return element("p", "No step is reported yet.")
    rows = [(words, seconds(value)) for words, value in times]
    return table(("part of a step, median over the reports", "#time"), rows)


def _is_emulated(run: Run) -> bool:
    """Whether JAX emulates the devices on the cores of a host."""
    devices = run.starts[-1]["devices"] if run.starts else ""
    return devices.endswith(" x cpu") and devices != "1 x cpu"
