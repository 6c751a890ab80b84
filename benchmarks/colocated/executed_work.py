"""`python -m benchmarks.colocated.executed_work`: FLOPs of a colocated step over the FLOPs on separate submeshes.

A small model on eight devices, which JAX emulates on a CPU; the forwards and backwards of both plans are compiled, and
their FLOPs counted by XLA, times how often the step runs them and on how many devices. Every stage has one layer, as
XLA counts a loop's body once.
"""

from benchmarks.command import run_benchmark
from benchmarks.rows import paper_row, report
from mmjax import cli

GOAL = 1.05
"""Most FLOPs of a colocated step over the FLOPs of the same model on separate submeshes."""


def main(arguments: cli.JsonArguments) -> int:
    """Prints the table. Returns 0 if the goal is met, else 1."""
    from benchmarks.colocated.step_flops import colocated_plan, separate_plan, small_configuration, step_flops

    config, batch = small_configuration()
    colocated, separate = (step_flops(config, plan, batch) for plan in (colocated_plan(config), separate_plan(config)))
    rows = [
        paper_row("GFLOPs of a step, colocated", colocated / 1e9),
        paper_row("GFLOPs of a step, separate submeshes", separate / 1e9),
        paper_row("FLOPs of a colocated step over separate submeshes", colocated / separate, goal=GOAL, most=True),
    ]
    return report(rows, "paper", digits=4, as_json=arguments.json)


if __name__ == "__main__":
    run_benchmark(
        main,
        cli.JsonArguments,
        name="benchmarks.colocated.executed_work",
        summary="Counts the FLOPs of a colocated step and of the same model on separate submeshes.",
        examples=("--json",),
    )
