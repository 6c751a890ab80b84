"""`python -m benchmarks.pipelines`: a pipeline as one program on H100s, beside dispatched programs, without an H100.

Compiles steps of Llama3-8B on eight H100s (`pip install -e '.[aot]'`), and prints what a device needs, and beside what
the permutes between pipeline ranks run. Nothing runs.
"""

import json

from benchmarks.command import hide_devices, run_benchmark
from configs.common.errors import UserError
from mmjax import cli


def main(arguments: cli.JsonArguments) -> int:
    """Compiles and prints."""
    from benchmarks.pipelines.schedules import format_pipelines, measure_pipelines
    from mmjax.training.dry_run.targets import missing_plugin

    if reason := missing_plugin():
        raise UserError(reason)
    reports = list(measure_pipelines())
    print(json.dumps([report.as_json() for report in reports]) if arguments.json else format_pipelines(reports))
    return 0


if __name__ == "__main__":
    hide_devices()
    run_benchmark(
        main,
        cli.JsonArguments,
        name="benchmarks.pipelines",
        summary="Compiles pipelines for H100s, and reports their memory and what hides their permutes.",
        examples=("--json",),
    )
