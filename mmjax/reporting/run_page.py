"""The page of a run: one self-contained HTML file; and its main charts as a fragment for notebooks.

`mmjax.report` writes it, and so does a training run at its end.
"""

import collections
import os
import pathlib
from collections.abc import Sequence

from configs.common.errors import UserError
from configs.common.secret_values import masked_configuration
from configs.common.whole_files import write_whole
from mmjax.reporting.metrics_charts import loss_charts, other_charts
from mmjax.reporting.plan_drawing import plan_drawing
from mmjax.reporting.predicted_step import PredictedTimeline, predict_timeline
from mmjax.reporting.run_folder import CONFIG_FILE, Run, open_run, shown_time
from mmjax.reporting.run_records import is_number
from mmjax.reporting.samples_section import samples_section
from mmjax.reporting.step_section import step_section, typical
from mmjax.training.config import TrainConfig
from sharding.html.elements import Html, element, figures, table
from sharding.html.numbers import count, count_of, percent, seconds, size
from sharding.html.page import page

PAGE_FILE = "report.html"
"""File of a workdir with the page that is written at the end of a run."""

_STYLE = """
.charts { display: grid; gap: 14px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 360px), 1fr)); }
.charts figure { background: var(--panel); border: 1px solid var(--line); border-radius: 4px; padding: 8px 12px; }
.answers td, .answers th { padding-right: 18px; min-width: 72px; }
"""
_MOST_REFUSALS = 200
_LOSSES = element(
    "p",
    "A point of the training loss is the mean of the steps since the point before. Held-out loss and accuracy are "
    "those of evaluations, on questions that are not trained on.",
    class_="note",
)


def run_page(run: Run, predicted: PredictedTimeline | str) -> str:
    """The page of a finished, a running or a killed run.

    Args:
        run: The run.
        predicted: A simulated step of its plan, or why there is none.
    """
    losses, others = loss_charts(run), other_charts(run)
    return page(
        f"Run {run.name}",
        element("p", _status(run)),
        _headline(run),
        _section("Losses and accuracy", _LOSSES, _charts(losses, "Nothing is reported yet.")),
        _section("Sample answers over time", element("div", samples_section(run), class_="answers")),
        _section("Training", _charts(others, "Nothing is reported yet.")),
        _section("Plan", *_plan(run)),
        _section("A step, simulated and measured", *step_section(run, predicted)),
        _section("Data", *_data(run)),
        _section("Checkpoints", _checkpoints(run)),
        _section("Starts, devices and versions", *_starts(run)),
        _section("Configuration", _configuration(run)),
        style=_STYLE,
    )


def write_run_page(run: Run, predicted: PredictedTimeline | str, path: str | os.PathLike[str]) -> None:
    """Writes the page to a file, which is replaced at once."""
    write_whole(path, run_page(run, predicted))


def write_report(workdir: pathlib.Path, config: TrainConfig) -> None:
    """Writes the page of a run whose configuration is at hand into its folder."""
    run = open_run(workdir)
    try:
        predicted = predict_timeline(run, config)
    except UserError as error:
        predicted = str(error)
    write_run_page(run, predicted, workdir / PAGE_FILE)


def run_fragment(run: Run) -> str:
    """Status, losses and accuracy for a notebook; nothing in it depends on a style sheet."""
    title = element("b", f"Run {run.name}")
    return element("div", title, element("div", _status(run)), loss_charts(run))


def _section(title: str, *content: str) -> Html:
    return element("section", element("h2", title), content)


def _charts(charts: Sequence[Html], nothing: str) -> Html:
    return element("div", charts, class_="charts") if charts else element("p", nothing)


def _status(run: Run) -> str:
    """The status of the run, in a sentence."""
    reported = run.metrics[-1]["step"] if run.metrics else 0
    total = run.starts[-1]["steps"] if run.starts else None
    total_text = f" of {total}" if total else ""
    if not run.summary:
        saved = f"; the newest checkpoint is of step {run.checkpoints[-1].step}" if run.checkpoints else ""
        return f"Going on, or killed: no end is recorded. Reported up to step {reported}{total_text}{saved}."
    if run.summary.get("stopped_by"):
        return f"Stopped by {run.summary['stopped_by']} after step {run.summary['steps']}{total_text}, which is saved."
    return f"Finished after {run.summary['steps']} steps."


def _headline(run: Run) -> Html:
    last = run.metrics[-1] if run.metrics else {}
    known = {name: value for line in run.metrics for name, value in line.items() if is_number(value)}
    entries = [("step", count(last.get("step", 0)))]
    entries += [
        (f"training loss of {name.removeprefix('loss/')}", f"{value:.4f}")
        for name, value in known.items()
        if name.startswith("loss/")
    ]
    entries += [
        (f"held-out loss of {name.removeprefix('held_out_loss/')}", f"{value:.4f}")
        for name, value in known.items()
        if name.startswith("held_out_loss/")
    ]
    if "accuracy" in known:
        entries.append(("held-out accuracy", percent(known["accuracy"])))
    if rate := typical(run, "tokens_per_second"):
        entries.append(("tokens a second, median", count(round(rate))))
    if wall := typical(run, "seconds/wall"):
        entries.append(("step, median", seconds(wall)))
    if "wall_seconds" in run.summary:
        entries.append(("time of the last run", seconds(run.summary["wall_seconds"])))
    return figures(entries)


def _plan(run: Run) -> list[Html]:
    if run.plan is None:
        return [element("p", "The workdir has no plan.json.")]
    rows = run.plan.table()
    remark = run.starts[-1].get("remark", "") if run.starts else run.summary.get("remark", "")
    words = f"{count_of(run.plan.microbatches, 'microbatch')}, schedule {run.plan.schedule}. {remark}"
    return [
        element("p", words.strip()),
        plan_drawing(run.plan),
        table(list(rows[0]), [list(row.values()) for row in rows]),
    ]


def _data(run: Run) -> list[Html]:
    drawn = run.summary.get("data", {}).get("samples", {})
    parts = []
    if drawn:
        rows = [(kind, count(samples)) for kind, samples in drawn.items()]
        parts.append(table(("kind", "#samples"), rows, "Samples that the run was given"))
    if not run.refusals:
        return [*parts, element("p", "No sample was refused.")]
    causes = collections.Counter(refusal["cause"] for refusal in run.refusals)
    words = " and ".join(f"{count(number)} {cause}" for cause, number in causes.items())
    rows = [
        (refusal["cause"], refusal["source"], refusal["key"], refusal["reason"])
        for refusal in run.refusals[:_MOST_REFUSALS]
    ]
    rest = f"; the first {_MOST_REFUSALS} are listed" if len(run.refusals) > _MOST_REFUSALS else ""
    listed = table(("cause", "kind", "sample", "reason"), rows)
    return [*parts, element("p", f"Refused samples: {words}{rest}."), element("div", listed, class_="list")]


def _checkpoints(run: Run) -> Html:
    if not run.checkpoints:
        return element("p", "There are no checkpoints.")
    rows = [
        (count(checkpoint.step), shown_time(checkpoint.time), size(checkpoint.size)) for checkpoint in run.checkpoints
    ]
    return table(("#step", "finished", "#size"), rows)


def _starts(run: Run) -> list[Html]:
    if not run.starts:
        return [element("p", "The workdir does not say when and where the run was started.")]
    rows = [
        (shown_time(start["time"]), count(start["step"]), start["devices"], count(start["processes"]), start["remark"])
        for start in run.starts
    ]
    versions = run.starts[-1]["versions"]
    return [
        table(("start", "#at step", "devices", "#processes", "remark"), rows),
        *(
            element("p", f"The start of {shown_time(start['time'])} resumed from step {start['step']}: {reason}.")
            for start in run.starts
            for reason in start.get("passed_over", ())
        ),
        element("p", ", ".join(f"{name} {version}" for name, version in versions.items()), class_="note"),
    ]


def _configuration(run: Run) -> Html:
    if not run.config_text:
        return element("p", f"The workdir has no {CONFIG_FILE}: the run was not configured by gin.")
    return element("details", element("summary", CONFIG_FILE), element("pre", masked_configuration(run.config_text)))
