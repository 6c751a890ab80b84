"""`python -m benchmarks.balancing`: speed and evenness of balancing, compared with the papers' algorithms.

Each row has a name, a value, a goal, whether it is met, and the value of a reference in the same run: an implementation
of the paper's pseudocode, or of what public code does. Times are milliseconds unless the name says otherwise; they
differ between machines, so compare them with the reference's.
"""

from benchmarks.command import run_benchmark
from benchmarks.rows import report
from mmjax import cli


def main(arguments: cli.JsonArguments) -> int:
    """Prints the rows. Returns 0 if every goal is met, else 1."""
    from benchmarks.balancing import fill, grouping, postbalancing, reordering

    rows = [row for part in (grouping, fill, postbalancing, reordering) for row in part.measure()]
    return report(rows, "reference", digits=6, as_json=arguments.json)


if __name__ == "__main__":
    run_benchmark(
        main,
        cli.JsonArguments,
        name="benchmarks.balancing",
        summary="Compares the speed and evenness of balancing with the papers' algorithms.",
        examples=("--json",),
    )
