"""`python -m benchmarks.checkpoint_stall`: how much longer do steps take because a checkpoint is saved beside them?

Windows of steps with a save after the first of them and windows without one take turns in one run, so that their
difference means something on a machine that is shared. A window is long enough for the files to be written within it.
"""

import dataclasses
import json
import statistics
import tempfile
import time

from benchmarks.command import run_benchmark
from mmjax import cli

GOAL = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointStallArguments(cli.GinArguments, cli.JsonArguments):
    """Flags of the command."""

    rounds: int = cli.flag(10, "Windows of either kind.", metavar="N", parse=cli.integer(1))
    steps: int = cli.flag(12, "Steps of a window.", metavar="N", parse=cli.integer(2))


def main(arguments: CheckpointStallArguments) -> int:
    """Measures and prints. Returns 1 if a save costs more than the goal at the configuration's interval."""
    from benchmarks.rows import package_versions

    config = cli.training_config(arguments)
    result = measure(config, arguments.rounds, arguments.steps) | {"versions": package_versions()}
    print(json.dumps(result) if arguments.json else describe(result))
    return 0 if result["share"] <= GOAL else 1


def measure(config, rounds: int, steps: int) -> dict:
    """Seconds of windows with and without a save, and the seconds of a save that follow from them."""
    from mmjax.training.trainer import Trainer

    config = dataclasses.replace(config, steps=10 + 2 * rounds * steps)
    windows = {"without": [], "with": []}
    blocked = []
    written_within = 0
    with tempfile.TemporaryDirectory() as workdir, Trainer(config, workdir=workdir) as trainer:
        assert trainer.checkpoints
        train(trainer, 6)
        save(trainer)
        trainer.checkpoints.wait()
        for _ in range(rounds):
            windows["without"].append(train(trainer, steps))
            begin = time.perf_counter()
            train(trainer, 1)
            blocked.append(save(trainer))
            train(trainer, steps - 1)
            windows["with"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            trainer.checkpoints.wait()
            written_within += time.perf_counter() - begin < 0.01
    step = statistics.median(windows["without"]) / steps
    stalls = [by_save - alone for by_save, alone in zip(windows["with"], windows["without"], strict=True)]
    stall = statistics.median(stalls)
    return {
        "step_seconds": step,
        "stall_seconds": stall,
        "stall_quartiles": statistics.quantiles(stalls, n=4)[::2] if rounds > 1 else [stall, stall],
        "blocked_seconds": statistics.median(blocked),
        "interval": config.checkpoint_interval,
        "share": stall / (step * config.checkpoint_interval),
        "goal": GOAL,
        "rounds": rounds,
        "written_within": written_within,
    }


def train(trainer, steps: int) -> float:
    """Seconds of so many steps, of which two are in flight as in `Trainer.fit`, and all are finished at the end."""
    from mmjax.training.metrics.step_timer import StepTimer

    begin, timer, dispatched = time.perf_counter(), StepTimer(), []
    for _ in range(steps):
        dispatched.append(trainer.dispatch_step(timer))
        if len(dispatched) > 2:
            trainer.finish_step(dispatched.pop(0))
    for step in dispatched:
        trainer.finish_step(step)
    return time.perf_counter() - begin


def save(trainer) -> float:
    """Seconds until the next step may be dispatched."""
    begin = time.perf_counter()
    trainer.save()
    return time.perf_counter() - begin


def describe(result: dict) -> str:
    """The figures as a table of Markdown."""
    low, high = result["stall_quartiles"]
    return "\n".join(
        [
            "| | |",
            "|---|---|",
            f"| a step | {result['step_seconds'] * 1e3:.0f} ms |",
            f"| a save holds the next step by | {result['blocked_seconds'] * 1e3:.0f} ms |",
            f"| steps beside a save take longer, together | {result['stall_seconds'] * 1e3:.0f} ms |",
            f"| middle half of {result['rounds']} pairs of windows | {low * 1e3:.0f} to {high * 1e3:.0f} ms |",
            f"| files written within the window | {result['written_within']} of {result['rounds']} |",
            f"| share at every {result['interval']} steps | {result['share']:.2%}, goal {result['goal']:.0%} |",
            "",
            str(result["versions"]),
        ]
    )


if __name__ == "__main__":
    run_benchmark(
        main,
        CheckpointStallArguments,
        name="benchmarks.checkpoint_stall",
        summary="Measures how much longer steps take because a checkpoint is saved beside them.",
        examples=("--gin_file=quickstart.gin --rounds=10",),
    )
