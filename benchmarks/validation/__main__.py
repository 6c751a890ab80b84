"""`python -m benchmarks.validation`: published training runs, each simulated at its setting.

Each row has the measured and the simulated seconds, and the error with its sign. Half of the runs, by a hash of their
names, may decide the constants of `configs.cost_effects.CostEffects`; the goals are those of the other half. Published
MFU that is a band, or whose setting is open, has rows of its own and enters no mean.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, get_args

from benchmarks.command import run_benchmark
from benchmarks.rows import report
from benchmarks.validation.settings.published import PublishedRun
from benchmarks.validation.settings.published_band import PublishedBand
from configs.cost_effects import CostEffects
from mmjax import cli
from sharding.costs.published_errors import ERRORS_FILE, Family

MEAN_GOAL, WORST_GOAL, SIGN_GOAL, TREND_GOAL = 0.06, 0.15, 0.03, 0.04
"""Goals of the testing half: mean absolute error, worst, mean of each family, growth for four times the width."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValidationArguments(cli.JsonArguments):
    """Flags of the command."""

    write: bool = cli.flag(False, f"Writes the errors of the testing half to {ERRORS_FILE.name}, for ranges of steps.")
    without_effects: bool = cli.flag(False, "Leaves all effects out: kernels and transfers take what they take alone.")


def main(arguments: ValidationArguments) -> int:
    """Prints the table. Returns 0 if every goal is met, else 1."""
    from benchmarks.validation.runs.all_runs import all_bands, all_runs

    if arguments.write and arguments.without_effects:
        raise cli.UserError("--write writes the errors of the costs with their effects; leave out --without_effects")
    effects = CostEffects() if arguments.without_effects else None
    rows: list[dict[str, Any]] = []
    errors: list[tuple[PublishedRun, float]] = []
    for run in all_runs():
        simulated = run.simulate(effects)
        errors.append((run, simulated / run.seconds - 1))
        figures = f"{run.seconds:.4g} s published, {simulated:.4g} s simulated"
        rows.append(
            _row(run.name, errors[-1][1], figures=figures)
            | {"published": run.seconds, "simulated": simulated, "source": run.source, "width": run.width}
            | {"family": run.family, "half": run.half}
        )
    testing = [(run, error) for run, error in errors if run.half == "testing"]
    if arguments.write:
        _write(testing)
    summary = [
        *(row for half in ("calibration", "testing") for row in _family_rows(half, errors)),
        *_goal_rows([error for _, error in testing]),
        _trend([run.width for run, _ in testing], [error for _, error in testing]),
    ]
    rows += [row for band in all_bands() for row in _band_rows(band, effects)]
    return report([*rows, *summary], "figures", digits=3, as_json=arguments.json)


def _band_rows(band: PublishedBand, effects: CostEffects | None) -> list[dict[str, Any]]:
    """The simulated MFU of every setting that fits a band, beside the band, and how far outside it lies."""
    published = f"{band.least:.1%}" if band.least == band.most else f"{band.least:.0%} to {band.most:.0%}"
    rows = []
    for assumed in band.assumed:
        mfu = assumed.mfu(effects)
        outside = band.outside(mfu)
        points = round(100 * abs(outside), 1)
        place = f"{points} points {'above' if outside > 0 else 'below'}" if points else "within"
        figures = f"{published} published, {mfu:.1%} simulated, {place}"
        rows.append(
            _row(f"MFU of {band.name}: {assumed.assumption}", mfu, figures=figures)
            | {"published": [band.least, band.most], "source": band.source, "outside": outside}
        )
    return rows


def _write(errors: Sequence[tuple[PublishedRun, float]]) -> None:
    """Writes the errors by family and run, rounded to a tenth of a percent."""
    by_family = {
        family: {run.name: round(error, 3) for run, error in errors if run.family == family}
        for family in get_args(Family)
    }
    document = {"made_by": "python -m benchmarks.validation --write", "errors": by_family}
    ERRORS_FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _family_rows(half: str, errors: Sequence[tuple[PublishedRun, float]]) -> list[dict[str, Any]]:
    """Mean error with sign, mean absolute and worst error of every family in one half."""
    import numpy as np

    rows = []
    for family in get_args(Family):
        values = np.array([error for run, error in errors if (run.family, run.half) == (family, half)])
        if len(values):
            worst = values[np.abs(values).argmax()]
            figures = f"{len(values)} runs, mean absolute {np.abs(values).mean():.1%}, worst {worst:+.1%}"
            goal = SIGN_GOAL if half == "testing" else None
            mean = float(values.mean())
            rows.append(_row(f"mean error of {family}, {half}", mean, abs(mean), goal, figures))
    return rows


def _goal_rows(errors: Sequence[float]) -> list[dict[str, Any]]:
    import numpy as np

    absolute = np.abs(errors)
    mean, worst = float(absolute.mean()), float(absolute.max())
    return [
        _row("mean absolute error, testing", mean, mean, MEAN_GOAL, f"{len(errors)} runs"),
        _row("worst absolute error, testing", worst, worst, WORST_GOAL),
    ]


def _trend(widths: Sequence[int], errors: Sequence[float]) -> dict[str, Any]:
    """Growth of the error where the width is four times as large (least squares over the width's logarithm)."""
    import numpy as np

    slope = 2 * float(np.polyfit(np.log2(widths), errors, 1)[0])
    return _row("error's growth for four times the width, testing", slope, abs(slope), TREND_GOAL)


def _row(
    name: str, value: float, judged: float | None = None, goal: float | None = None, figures: str = ""
) -> dict[str, Any]:
    met = None if goal is None or judged is None else judged <= goal
    return {"name": name, "value": value, "goal": goal, "met": met, "figures": figures}


if __name__ == "__main__":
    run_benchmark(
        main,
        ValidationArguments,
        name="benchmarks.validation",
        summary="Simulates published training runs at their settings, and compares the seconds.",
        examples=("--json", "--write", "--without_effects"),
    )
