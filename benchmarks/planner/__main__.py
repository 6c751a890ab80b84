"""`python -m benchmarks.planner`: how fast the planner is, how near to the optimum, and DistTrain's models simulated.

With `--edits`, chosen plans are edited at random instead: no edit of a single field should shorten a simulated step by
more than 0.5%. With `--partitions`, the policy `balanced` plans with and without partitions near the exact ones.

Each row has a name, a value, a goal, whether it is met, and the paper's figure (arXiv 2408.04275).
"""

import dataclasses

from benchmarks.command import run_benchmark
from benchmarks.rows import every_goal_met, report
from configs.common.errors import UserError
from mmjax import cli

DATA = "data/laion_like.gin"

EDITS = 200
"""Valid edits of each plan that `--edits` tries without a number."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannerArguments(cli.JsonArguments):
    """Flags of the command."""

    models: tuple[str, ...] = cli.flag(
        ("mllm_9b", "mllm_15b", "mllm_72b"),
        "Models of configs/models to simulate.",
        metavar="NAMES",
        parse=cli.list_of(str),
    )
    edits: int | None = cli.flag(
        None,
        f"Tries random edits of chosen plans instead, so many valid ones of each ({EDITS} without a number).",
        metavar="N",
        parse=cli.integer(1),
        bare=EDITS,
    )
    partitions: bool = cli.flag(False, "Plans with the exact partitions alone and with others near them instead.")
    problems: tuple[str, ...] = cli.flag(
        (),
        "With --edits and --partitions: the problems that are planned; all by default.",
        metavar="NAMES",
        parse=cli.list_of(str),
    )


def main(arguments: PlannerArguments) -> int:
    """Prints the table. Returns 0 if every goal is met, else 1."""
    if arguments.edits is not None:
        return _edit_plans(arguments, arguments.edits)
    if arguments.partitions:
        return _compare_partitions(arguments)
    from benchmarks.planner import choices
    from benchmarks.planner.disttrain_models import explain_difference, simulate_model
    from benchmarks.planner.interleaving import measure_interleaving
    from benchmarks.planner.speed import measure_speed
    from benchmarks.planner.zero_bubble import measure_zero_bubble
    from configs.architectures import ModelConfig
    from configs.workloads import SyntheticData

    described = {}
    for name in dict.fromkeys((*arguments.models, "mllm_72b")):
        cli.parse_gin((f"models/{name}.gin", DATA))
        described[name] = (cli.configured(ModelConfig), cli.configured(SyntheticData))
    rows = measure_speed(*described["mllm_72b"])
    rows += choices.measure_comparisons(*described["mllm_72b"])
    for name in (name for name in arguments.models if name in choices.FEW_ROWS):
        rows += choices.measure_estimates(name, *described[name])
        rows += choices.measure_few_devices(name, *described[name])
    for name in arguments.models:
        rows += simulate_model(name, *described[name])
        rows += explain_difference(name, *described[name])
    rows += measure_interleaving(*described["mllm_72b"])
    rows += measure_zero_bubble(*described["mllm_72b"])
    return report(rows, "paper", digits=4, as_json=arguments.json)


def _compare_partitions(arguments: PlannerArguments) -> int:
    from benchmarks.planner.partitions import measure_partitions

    rows = [row for name in _problem_names(arguments) for row in measure_partitions(name)]
    return report(rows, "paper", digits=4, as_json=arguments.json)


def _problem_names(arguments: PlannerArguments) -> tuple[str, ...]:
    from benchmarks.planner.edits.problems import PROBLEMS

    for name in arguments.problems:
        if name not in PROBLEMS:
            raise UserError(f"--problems names {name!r}, which there is not; choose from {', '.join(PROBLEMS)}")
    return arguments.problems or tuple(PROBLEMS)


def _edit_plans(arguments: PlannerArguments, count: int) -> int:
    from benchmarks.planner.edits.measure import measure_edits
    from benchmarks.planner.edits.table import print_edits

    rows = [measure_edits(name, count) for name in _problem_names(arguments)]
    if arguments.json:
        return report(rows, "best", digits=4, as_json=True)
    print_edits(rows)
    return 0 if every_goal_met(rows) else 1


if __name__ == "__main__":
    run_benchmark(
        main,
        PlannerArguments,
        name="benchmarks.planner",
        summary="Measures the planner's speed and optimality, simulates DistTrain's models, or edits chosen plans.",
        examples=("--models=mllm_9b", "--edits", "--edits=20 --problems=mllm_9b", "--partitions"),
    )
