"""`python -m benchmarks.prediction`: does a profile of the layers tell what a step of the plan takes on this machine?

The layers are timed on shallow models (`mmjax.profile`), the plan's ops are costed from them, and every op of real
steps is run alone and waited for: half of the steps before the profile is measured and half after it, for the speed of
the machine may drift. On a CPU the sums are compared, because its devices share the cores.
"""

import json

from absl import flags

from mmjax import cli

_PROFILE = flags.DEFINE_string("profile", "", "Profile of this machine; default: measure one now.")
_STEPS = flags.DEFINE_integer("steps", 8, "Steps of which every op is timed.", lower_bound=2)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")

GOAL = 0.15


def main() -> int:
    """Predicts, measures and prints by kind of op. Returns 1 if the sums differ by more than the goal."""
    cli.parse_gin("quickstart.gin")
    import jax

    from mmjax.planning.automatic import measure_profile, problem_from_profile
    from mmjax.training.config import TrainConfig, load_configured_plan
    from mmjax.training.engine.engine import Engine
    from mmjax.training.profiling.op_times import measure_op_times, seconds_by_kind
    from mmjax.training.row_loads import first_batches
    from sharding.costs.profiled import Profile

    config = cli.configured(TrainConfig)
    plan, _ = load_configured_plan(config, jax.device_count())
    taken = first_batches(config, 4)
    engine = Engine(config.model, plan, taken[0].arrays, config.engine_settings)
    arrays = [batch.arrays for batch in taken]
    first = measure_op_times(engine, arrays, _STEPS.value // 2)
    profile = Profile.load(_PROFILE.value) if _PROFILE.value else measure_profile(config, taken[0])
    second = measure_op_times(engine, arrays, _STEPS.value - _STEPS.value // 2)
    timeline = problem_from_profile(config, profile, jax.device_count()).simulate(plan)
    predicted = seconds_by_kind({span.op: float(span.seconds.max()) for span in timeline.spans})
    measured = seconds_by_kind({part: (first[part] + second[part]) / 2 for part in first})
    ratio = sum(predicted.values()) / sum(measured.values())
    result = {"predicted": predicted, "measured": measured, "ratio": ratio, "goal": GOAL, "device": profile.device_kind}
    if _JSON.value:
        print(json.dumps(result))
    else:
        print(f"{'milliseconds':14}{'predicted':>11}{'measured':>11}")
        for kind, seconds in measured.items():
            print(f"{kind:14}{predicted.get(kind, 0.0) * 1e3:11.1f}{seconds * 1e3:11.1f}")
        print(f"{'all':14}{sum(predicted.values()) * 1e3:11.1f}{sum(measured.values()) * 1e3:11.1f}")
        print(f"predicted / measured = {ratio:.3f}; the goal is within {GOAL:.0%} of 1")
    return 0 if abs(ratio - 1) <= GOAL else 1


if __name__ == "__main__":
    cli.run(main)
