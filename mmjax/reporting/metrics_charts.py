"""The charts of a run's metrics on its page: losses by name, rates, times, padding, and all other written numbers."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from mmjax.reporting.line_chart import Series, line_chart
from mmjax.reporting.run_folder import Run, shown_time
from mmjax.reporting.run_records import is_number
from sharding.html.colours import series_colour
from sharding.html.elements import Html
from sharding.html.numbers import count, percent, seconds, significant

Write = Callable[[float], str]


@dataclasses.dataclass(frozen=True)
class _Group:
    """A chart of the metrics whose names begin with a prefix, or of the metric with the prefix as its name."""

    prefix: str
    title: str
    unit: str = ""
    write: Write = significant
    from_zero: bool = False
    rest: str = ""  # label of the metric whose name is the prefix, beside others


_ACCURACY = _Group("accuracy", "Held-out accuracy", "share of questions", percent, True)
_GROUPS = (
    _Group(
        "learning_rate", "Learning rate", write=lambda value: f"{value:.3g}", from_zero=True, rest="all other parts"
    ),
    _Group("gradient_norm", "Gradient norm before clipping", from_zero=True),
    _Group("tokens_per_second", "Throughput", "backbone tokens a second", count, True),
    _Group("mfu", "Model FLOPs utilisation", "share of the peak", percent, True),
    _Group("seconds", "Time of a step by part, as the host measures it", "seconds", seconds, True),
    _Group("padding", "Padding of rows by module", "share of capacity", percent, True),
)
_LOSS, _HELD_OUT_LOSS = "loss/", "held_out_loss/"
_NOT_DRAWN = ("step", "tokens/", _HELD_OUT_LOSS)  # padding shows the counts, and charts of losses the held-out ones


def loss_charts(run: Run) -> list[Html]:
    """A chart for each loss, beside it the held-out one if the run was evaluated, and one of the accuracy."""
    names = [name.removeprefix(_LOSS) for name in _names(run) if name.startswith(_LOSS)]
    charts = [_loss_chart(run, name, number) for number, name in enumerate(names)]
    accuracy = [_ACCURACY.prefix] if _ACCURACY.prefix in _names(run) else []
    return charts + [_chart(run, _ACCURACY, _labels(accuracy, _ACCURACY), 2) for _ in accuracy]


def _loss_chart(run: Run, name: str, number: int) -> Html:
    trained, held_out = f"{_LOSS}{name}", f"{_HELD_OUT_LOSS}{name}"
    if held_out not in _names(run):
        return _chart(run, _Group(trained, f"Loss of {name}"), {trained: "training"}, number)
    title = f"Loss of {name}, in training and on held-out questions"
    return _chart(run, _Group(trained, title), {trained: "training", held_out: "held out"}, number)


def other_charts(run: Run) -> list[Html]:
    """A chart for each group of the other metrics; a user's own metrics are grouped by the text before the slash."""
    rest = [name for name in _names(run) if not name.startswith((_LOSS, *_NOT_DRAWN)) and name != _ACCURACY.prefix]
    charts = []
    for group in _GROUPS:
        names = [name for name in rest if name.partition("/")[0] == group.prefix]
        rest = [name for name in rest if name not in names]
        if names:
            charts.append(_chart(run, group, _labels(names, group)))
    for prefix in dict.fromkeys(name.partition("/")[0] for name in rest):
        names = [name for name in rest if name.partition("/")[0] == prefix]
        group = _Group(prefix, prefix)
        charts.append(_chart(run, group, _labels(names, group)))
    return charts


def _names(run: Run) -> list[str]:
    return list(dict.fromkeys(name for line in run.metrics for name in line))


def _chart(run: Run, group: _Group, labels: Mapping[str, str], colour: int = 0) -> Html:
    """A line for each metric, with its label in the legend."""
    series = [
        Series(
            label,
            [(line["step"], line[name]) for line in run.metrics if is_number(line.get(name))],
            series_colour(colour + number),
        )
        for number, (name, label) in enumerate(labels.items())
    ]
    return line_chart(
        group.title,
        series,
        (0, run.metrics[-1]["step"]),
        unit=group.unit,
        marks=resume_marks(run),
        write=group.write,
        from_zero=group.from_zero,
    )


def _labels(names: Sequence[str], group: _Group) -> dict[str, str]:
    """The labels of the metrics of a group: the text after the prefix, or the name of the chart or of the rest."""
    return {name: _label(name, group, len(names)) for name in names}


def _label(name: str, group: _Group, metrics: int) -> str:
    """The text after the prefix of a metric; a metric whose name is the prefix is called like the chart or the rest."""
    if name != group.prefix:
        return name.removeprefix(f"{group.prefix}/")
    if group.rest and metrics > 1:
        return group.rest
    return name if group.title == group.prefix else group.title[0].lower() + group.title[1:]


def resume_marks(run: Run) -> list[tuple[int, str]]:
    """The steps at which the run was resumed, with the time."""
    return [
        (start["step"], f"resumed at step {start['step']}, {shown_time(start['time'])}") for start in run.starts[1:]
    ]
