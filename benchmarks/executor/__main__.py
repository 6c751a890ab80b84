"""`python -m benchmarks.executor`: what the executor costs, against one `jit` of the same work on one device.

Three units at dp = tp = pp = 1 compute what the one program computes, so that the difference is the driver's own:
dispatch, hops, batches, gathering of weights. Both take turns, step by step, in one process. On a CPU the devices
share the cores; processor time is printed too, because it does not count what programs of several devices gain by
running at once.

With `--dispatch`, the processor time of the thread that dispatches is measured instead, by kind of op (by default of
`tiny.gin`). With `--pipelines`, a deep backbone on four pipeline ranks is compared with itself: dispatched stages, and
one program a step (`UnitPlan.executor`).
"""

import dataclasses
import json
from typing import Any

from benchmarks.command import run_benchmark
from mmjax import cli


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutorArguments(cli.GinArguments, cli.JsonArguments):
    """Flags of the command."""

    dispatch: bool = cli.flag(False, "Measures processor time of the dispatching thread by kind of op instead.")
    pipelines: bool = cli.flag(False, "Compares a deep pipeline as one program with dispatched stages instead.")
    steps: int = cli.flag(40, "Steps that are timed, after the first two.", metavar="N", parse=cli.integer(1))


def main(arguments: ExecutorArguments) -> int:
    """Measures at the size of the configuration (default: the quickstart) and prints; 1 if the goal is missed."""
    import jax

    if arguments.pipelines:
        jax.config.update("jax_enable_compilation_cache", False)  # compilation is timed
        from benchmarks.executor.pipelines import format_pipelines, measure_pipelines

        measured = measure_pipelines(arguments.steps)
        print(json.dumps(measured) if arguments.json else format_pipelines(measured))
        return 0

    if arguments.dispatch:
        from benchmarks.executor.dispatching import format_dispatch, measure_dispatch
        from mmjax.training.row_loads import first_batches

        gin_file = arguments.gin_file or ("tiny.gin",)
        config = cli.training_config(dataclasses.replace(arguments, gin_file=gin_file))
        measured = measure_dispatch(config, [batch.arrays for batch in first_batches(config, 4)], arguments.steps)
        print(json.dumps(measured) if arguments.json else format_dispatch(measured))
        return 0 if measured["us_per_op"] <= measured["goal_us"] else 1

    from benchmarks.executor.comparison import (
        EXECUTOR,
        GOAL,
        PLAN,
        format_comparison,
        measure,
        one_device_per_module,
    )
    from benchmarks.rows import package_versions
    from mmjax.training.config import load_configured_plan
    from mmjax.training.row_loads import first_batches

    config = cli.training_config(arguments)
    plan, _ = load_configured_plan(config, jax.device_count())
    arrays = [batch.arrays for batch in first_batches(config, 4)]
    plans = {EXECUTOR: one_device_per_module(config.model, plan), PLAN: plan}
    result: dict[str, Any] = measure(config, plans, arrays, arguments.steps) | {"versions": package_versions()}
    print(json.dumps(result) if arguments.json else format_comparison(result))
    return 0 if result["overhead"][EXECUTOR]["median"] <= GOAL else 1


if __name__ == "__main__":
    run_benchmark(
        main,
        ExecutorArguments,
        name="benchmarks.executor",
        summary="Measures what the executor costs, against one jit of the same work on one device.",
        examples=("--gin_file=tiny.gin --steps=10",),
    )
