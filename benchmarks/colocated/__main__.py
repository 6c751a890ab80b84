"""`python -m benchmarks.colocated`: Optimus's models simulated as colocated plans, and as the plans compared with them.

How much of the encoders the schedule hides, and how long it takes to find it, is counted for ViT-22B with GPT-175B.

Each row has a name, a value, a goal, whether it is met, and the paper's figure (arXiv 2408.03505).
"""

import dataclasses

from benchmarks.colocated import settings
from benchmarks.command import run_benchmark
from benchmarks.rows import report
from configs.common.errors import UserError
from mmjax import cli

MODELS = tuple(dict.fromkeys(setting.model for setting in settings.SETTINGS))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColocatedArguments(cli.JsonArguments):
    """Flags of the command."""

    models: tuple[str, ...] = cli.flag(
        MODELS, "Models of configs/models to simulate.", metavar="NAMES", parse=cli.list_of(str)
    )


def main(arguments: ColocatedArguments) -> int:
    """Prints the table. Returns 0 if every goal is met, else 1."""
    from benchmarks.colocated.cases import case_of
    from benchmarks.colocated.measure import mean_gain_rows, measure_case
    from benchmarks.colocated.scheduling import enumeration_row, increase_rows, scheduling_rows

    for name in arguments.models:
        if name not in MODELS:
            raise UserError(f"--models names {name!r}, which Optimus does not train; choose from {', '.join(MODELS)}")
    rows = []
    for setting in settings.SETTINGS:
        if setting.model in arguments.models:
            rows += measure_case(case_of(setting))
    rows += mean_gain_rows(rows, (*settings.WEAK_SCALING, *settings.STRONG_SCALING, *settings.TWO_ENCODERS))
    if settings.STRONG_SCALING[0].model in arguments.models:
        shares = [row for setting in settings.STRONG_SCALING for row in scheduling_rows(case_of(setting))]
        rows += [*shares, *increase_rows(shares), enumeration_row()]
    return report(rows, "paper", digits=4, as_json=arguments.json)


if __name__ == "__main__":
    run_benchmark(
        main,
        ColocatedArguments,
        name="benchmarks.colocated",
        summary="Simulates Optimus's models as colocated plans, with its baselines and with the backbone alone.",
        examples=("--models=vit_3b_gpt_11b",),
    )
