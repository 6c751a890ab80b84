"""`python -m benchmarks.prediction`: does a profile of the layers tell what a step of the plan takes on this machine?

The layers are timed on shallow models (`mmjax.profile`), the plan's ops are costed from them, and every op of real
steps is run alone and waited for: half of the steps before the profile is measured and half after it, for the speed of
the machine may drift. On a CPU the sums are compared, because its devices share the cores.
"""

import dataclasses
import json

from benchmarks.command import run_benchmark
from mmjax import cli

GOAL = 0.15


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionArguments(cli.GinArguments, cli.JsonArguments):
    """Flags of the command."""

    profile: str = cli.flag("", "Profile of this machine; without the flag, it is measured now.", metavar="FILE")
    steps: int = cli.flag(8, "Steps of which every op is timed.", metavar="N", parse=cli.integer(2))


def main(arguments: PredictionArguments) -> int:
    """Predicts, measures and prints by kind of op. Returns 1 if the sums differ by more than the goal."""
    import jax

    from mmjax.planning.automatic import measure_profile, problem_from_profile
    from mmjax.training.config import load_configured_plan
    from mmjax.training.engine.engine import Engine
    from mmjax.training.profiling.op_times import measure_op_times, seconds_by_kind
    from mmjax.training.row_loads import first_batches
    from sharding.costs.profiled import Profile

    config = cli.training_config(arguments)
    plan, _ = load_configured_plan(config, jax.device_count())
    taken = first_batches(config, 4)
    engine = Engine(config.model, plan, taken[0].arrays, config.engine_settings)
    arrays = [batch.arrays for batch in taken]
    first = measure_op_times(engine, arrays, arguments.steps // 2)
    profile = Profile.load(arguments.profile) if arguments.profile else measure_profile(config, taken[0])
    second = measure_op_times(engine, arrays, arguments.steps - arguments.steps // 2)
    timeline = problem_from_profile(config, profile, jax.device_count()).simulate(plan)
    predicted = seconds_by_kind({span.op: float(span.own_seconds.max()) for span in timeline.spans})
    measured = seconds_by_kind({part: (first[part] + second[part]) / 2 for part in first})
    ratio = sum(predicted.values()) / sum(measured.values())
    result = {"predicted": predicted, "measured": measured, "ratio": ratio, "goal": GOAL, "device": profile.device_kind}
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"{'milliseconds':14}{'predicted':>11}{'measured':>11}")
        for kind, seconds in measured.items():
            print(f"{kind:14}{predicted.get(kind, 0.0) * 1e3:11.1f}{seconds * 1e3:11.1f}")
        print(f"{'all':14}{sum(predicted.values()) * 1e3:11.1f}{sum(measured.values()) * 1e3:11.1f}")
        print(f"predicted / measured = {ratio:.3f}; the goal is within {GOAL:.0%} of 1")
    return 0 if abs(ratio - 1) <= GOAL else 1


if __name__ == "__main__":
    run_benchmark(
        main,
        PredictionArguments,
        name="benchmarks.prediction",
        summary="Compares what a profile predicts for every op of a step with what is measured.",
        examples=("--gin_file=quickstart.gin --steps=8",),
    )
