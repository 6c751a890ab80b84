"""`python -m benchmarks.fp8_training`: does a run whose blocks multiply FP8 learn as fast as one in bfloat16?

The same run is trained three times from the same parameters on the same batches: in bfloat16, in bfloat16 with FP8
operands in all encoders' and the backbone's blocks, and in float32, whose distance from bfloat16 is what rounding alone
makes. Without FP8 hardware the same rounded values are multiplied in bfloat16.
"""

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

from benchmarks.command import run_benchmark
from mmjax import cli

if TYPE_CHECKING:
    from configs.architectures import ModelConfig
    from mmjax.training.config import TrainConfig

GOAL = 0.01
WINDOW = 20
LAYERS = ("attention", "mlp")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fp8TrainingArguments(cli.GinArguments, cli.JsonArguments):
    """Flags of the command."""

    steps: int = cli.flag(200, f"Steps of each run, a multiple of {WINDOW}.", metavar="N", parse=cli.integer(WINDOW))


def main(arguments: Fp8TrainingArguments) -> int:
    """Trains and prints. Returns 1 if a loss of the last window is more than the goal away from bfloat16's."""
    from benchmarks.rows import package_versions

    config = cli.training_config(arguments)
    curves = {}
    for name, model in variants(config.model).items():
        curves[name] = loss_curves(dataclasses.replace(config, model=model), arguments.steps)
        print(name, json.dumps(curves[name]), file=sys.stderr, flush=True)
    last = differences(curves)[-1]
    result = {"windows": curves, "last": last, "goal": GOAL, "versions": package_versions()}
    print(json.dumps(result) if arguments.json else describe(curves))
    return 0 if all(abs(difference) <= GOAL for difference in last["fp8"].values()) else 1


def variants(model: "ModelConfig") -> dict[str, "ModelConfig"]:
    """The model in each number format."""
    native = model.with_fp8(())
    return {
        "bfloat16": dataclasses.replace(native, dtype="bfloat16"),
        "fp8": dataclasses.replace(model.with_fp8(LAYERS), dtype="bfloat16"),
        "float32": dataclasses.replace(native, dtype="float32"),
    }


def loss_curves(config: "TrainConfig", steps: int) -> dict[str, list[float]]:
    """Means of each loss over windows of `WINDOW` steps."""
    from mmjax.training.trainer import Trainer

    with Trainer(dataclasses.replace(config, steps=steps)) as trainer:
        losses = [trainer.step().losses for _ in range(steps)]
    return {
        name: [
            sum(step[name] for step in losses[first : first + WINDOW]) / WINDOW
            for first in range(0, steps - WINDOW + 1, WINDOW)
        ]
        for name in losses[0]
    }


def differences(curves: dict[str, dict[str, list[float]]]) -> list[dict[str, dict[str, float]]]:
    """For each window, how far each format's losses are from bfloat16's, relative to these."""
    base = curves["bfloat16"]
    windows = len(next(iter(base.values())))
    return [
        {
            name: {loss: means[loss][number] / base[loss][number] - 1 for loss in base}
            for name, means in curves.items()
            if name != "bfloat16"
        }
        for number in range(windows)
    ]


def describe(curves: dict[str, dict[str, list[float]]]) -> str:
    """A table in Markdown: a window a line, the losses in bfloat16, and the differences of the others."""
    base: dict[str, Any] = curves["bfloat16"]
    others = [name for name in curves if name != "bfloat16"]
    heads = [f"{loss}, {name}" for loss in base for name in ("bfloat16", *others)]
    lines = [f"| steps | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for number, window in enumerate(differences(curves)):
        cells = [
            cell
            for loss in base
            for cell in (f"{base[loss][number]:.4f}", *(f"{window[name][loss]:+.2%}" for name in others))
        ]
        lines.append(f"| {number * WINDOW + 1} to {(number + 1) * WINDOW} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_benchmark(
        main,
        Fp8TrainingArguments,
        name="benchmarks.fp8_training",
        summary="Compares the losses of a run in bfloat16, with FP8 matmuls and in float32.",
        examples=("", "--gin_file=tiny.gin --steps=40"),
    )
