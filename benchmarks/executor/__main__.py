"""`python -m benchmarks.executor`: what the executor costs, against one `jit` of the same work on one device.

Three units at dp = tp = pp = 1 compute what the one program computes, so that the difference is the driver's own:
dispatch, hops, batches, gathering of weights. Both take turns, step by step, in one process. On a CPU the devices
share the cores; processor time is printed too, because it does not count what programs of several devices gain by
running at once.
"""

import json

from absl import flags

from mmjax import cli

_STEPS = flags.DEFINE_integer("steps", 40, "Steps that are timed, after the first two.", lower_bound=1)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")


def main() -> int:
    """Measures at the size of the configuration (default: the quickstart) and prints; 1 if the goal is missed."""
    cli.parse_gin("quickstart.gin")
    import jax

    from benchmarks.executor.comparison import (
        EXECUTOR,
        GOAL,
        PLAN,
        format_comparison,
        measure,
        one_device_per_module,
    )
    from benchmarks.rows import package_versions
    from mmjax.training.config import TrainConfig, load_configured_plan
    from mmjax.training.row_loads import first_batches

    config = cli.configured(TrainConfig)
    plan, _ = load_configured_plan(config, jax.device_count())
    arrays = [batch.arrays for batch in first_batches(config, 4)]
    plans = {EXECUTOR: one_device_per_module(config.model, plan), PLAN: plan}
    result = measure(config, plans, arrays, _STEPS.value) | {"versions": package_versions()}
    print(json.dumps(result) if _JSON.value else format_comparison(result))
    return 0 if result["overhead"][EXECUTOR]["median"] <= GOAL else 1


if __name__ == "__main__":
    cli.run(main)
