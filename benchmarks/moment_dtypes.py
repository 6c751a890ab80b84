"""`python -m benchmarks.moment_dtypes`: losses of a run with AdamW's moments in float32 and in bfloat16.

Every run sees the same batches. The same run with another seed of the initial values and of the diffusion's noise shows
how far apart two runs are that differ in nothing of interest.
"""

import dataclasses
import json
from typing import Any, NamedTuple

from benchmarks.command import run_benchmark
from mmjax import cli


class Variant(NamedTuple):
    """A run: the type of its moments, and what else differs from the configuration."""

    moment_dtype: str
    beta2: float
    seed: int


VARIANTS = (
    Variant("float32", 0.98, 0),
    Variant("bfloat16", 0.98, 0),
    Variant("float32", 0.999, 0),
    Variant("bfloat16", 0.999, 0),
    Variant("float32", 0.98, 1),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MomentDtypesArguments(cli.GinArguments):
    """Flags of the command."""

    steps: int = cli.flag(200, "Steps of each run.", metavar="N", parse=cli.integer(4))
    window: int = cli.flag(50, "Steps whose losses are averaged.", metavar="N", parse=cli.integer(1))


def main(arguments: MomentDtypesArguments) -> int:
    """Prints a line of JSON for every run: its mean losses by window."""
    config = dataclasses.replace(cli.training_config(arguments), steps=arguments.steps)
    for variant in VARIANTS:
        losses = window_losses(with_variant(config, variant), arguments.window)
        print(json.dumps(variant._asdict() | losses), flush=True)
    return 0


def with_variant(config: Any, variant: Variant) -> Any:
    """A training configuration with AdamW of a variant."""
    from configs.optimizer import AdamW

    algorithm = AdamW(beta2=variant.beta2, moment_dtype=variant.moment_dtype)  # pyright: ignore[reportArgumentType]
    optimizer = dataclasses.replace(config.optimizer, algorithm=algorithm)
    return dataclasses.replace(config, optimizer=optimizer, seed=variant.seed)


def window_losses(config: Any, window: int) -> dict[str, list[float]]:
    """Trains, and returns the mean losses of every window of steps by name."""
    from mmjax.training.trainer import Trainer

    sums: dict[str, list[float]] = {}
    with Trainer(config) as trainer:
        for number in range(config.steps):
            for name, loss in trainer.step().losses.items():
                means = sums.setdefault(name, [])
                if number % window == 0:
                    means.append(0.0)
                means[-1] += loss / min(window, config.steps - (number // window) * window)
    return {name: [round(mean, 4) for mean in means] for name, means in sums.items()}


if __name__ == "__main__":
    run_benchmark(
        main,
        MomentDtypesArguments,
        name="benchmarks.moment_dtypes",
        summary="Compares the losses of runs with AdamW's moments in float32 and in bfloat16.",
        examples=("--gin_file=quickstart.gin", "--gin_file=tiny.gin --steps=20 --window=5"),
    )
