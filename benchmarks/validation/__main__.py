"""`python -m benchmarks.validation`: published text-only training runs, each simulated at its setting.

Each row has the published and the simulated seconds, the error with its sign, a goal and whether it is met. No constant
of the costs is fitted to these runs.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.command import run_benchmark
from benchmarks.rows import report
from mmjax import cli

WORST_GOAL, MEAN_GOAL, TREND_GOAL = 0.08, 0.04, 0.04
"""Goals of the absolute error of each run, of its mean, and of the error's change for a width four times as large."""


def main(arguments: cli.JsonArguments) -> int:
    """Prints the table. Returns 0 if every goal is met, else 1."""
    import numpy as np

    from benchmarks.validation import data_parallel, maxtext, megascale, megatron

    runs = (
        *megatron.layer_runs(),
        *megatron.step_runs(),
        *megascale.runs(),
        *data_parallel.flash_attention_runs(),
        *data_parallel.internlm_runs(),
        *data_parallel.mpt_runs(),
        *maxtext.runs(),
    )
    rows: list[dict[str, Any]] = []
    for run in runs:
        simulated = run.simulate()
        error = simulated / run.seconds - 1
        row = _row(
            run.name, error, abs(error), WORST_GOAL, f"{run.seconds:.4g} s published, {simulated:.4g} s simulated"
        )
        rows.append(row | {"published": run.seconds, "simulated": simulated, "source": run.source, "width": run.width})
    errors = np.array([row["value"] for row in rows])
    summary = [
        _row("mean absolute error", float(np.abs(errors).mean()), float(np.abs(errors).mean()), MEAN_GOAL),
        _row("worst absolute error", float(np.abs(errors).max()), float(np.abs(errors).max()), WORST_GOAL),
        _row("mean error", float(errors.mean())),
        _trend([run.width for run in runs], errors.tolist()),
    ]
    return report([*rows, *summary], "figures", digits=3, as_json=arguments.json)


def _trend(widths: Sequence[int], errors: Sequence[float]) -> dict[str, Any]:
    """Growth of the error where the width is four times as large (least squares over the width's logarithm)."""
    import numpy as np

    slope = 2 * float(np.polyfit(np.log2(widths), errors, 1)[0])
    return _row("error's growth for four times the width", slope, abs(slope), TREND_GOAL)


def _row(
    name: str, value: float, judged: float | None = None, goal: float | None = None, figures: str = ""
) -> dict[str, Any]:
    met = None if goal is None or judged is None else judged <= goal
    return {"name": name, "value": value, "goal": goal, "met": met, "figures": figures}


if __name__ == "__main__":
    run_benchmark(
        main,
        cli.JsonArguments,
        name="benchmarks.validation",
        summary="Simulates published text-only training runs at their settings, and compares the seconds.",
        examples=("--json",),
    )
