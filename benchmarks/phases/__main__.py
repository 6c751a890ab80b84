"""`python -m benchmarks.phases`: what rows of their own cost and save, for a training configuration.

On the host: dealing items and making tables. Executed work: what devices compute over what samples need, counted
exactly. On the devices: processor time of steps with and without, in turns, and their losses. Both also
of post-balanced steps over the same samples in rows as drawn.
"""

import dataclasses

from benchmarks.command import run_benchmark
from benchmarks.rows import report
from mmjax import cli


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseArguments(cli.GinArguments, cli.JsonArguments):
    """Flags of the command."""

    steps: int = cli.flag(20, "Steps of each plan to time.", metavar="N", parse=cli.integer(1))
    planned_steps: int = cli.flag(256, "Steps whose executed work is counted.", metavar="N", parse=cli.integer(1))


def main(arguments: PhaseArguments) -> int:
    """Prints the figures; 1 if a goal is missed."""
    import jax

    from benchmarks.phases.balanced_steps import balanced_rows
    from benchmarks.phases.executed_work import work_rows
    from benchmarks.phases.host import host_rows
    from benchmarks.phases.steps import step_rows
    from mmjax.training.config import load_configured_plan

    config = cli.training_config(arguments)
    plan, _ = load_configured_plan(config, jax.device_count())
    work, own_rows = work_rows(config, plan, max(arguments.planned_steps, arguments.steps))
    rows = [*host_rows(), *work, *step_rows(config, plan, own_rows, arguments.steps)]
    rows += balanced_rows(config, plan, arguments.steps)
    return report(rows, "note", digits=3, as_json=arguments.json)


if __name__ == "__main__":
    run_benchmark(
        main,
        PhaseArguments,
        name="benchmarks.phases",
        summary="Measures what it costs and saves to deal the items of a module over rows of its own.",
        examples=("--gin_file=quickstart.gin",),
    )
