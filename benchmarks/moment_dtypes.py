"""`python -m benchmarks.moment_dtypes`: AdamW with moments in bfloat16, against float32.

First, moments of random gradients that shrink tenfold half-way, rounded to the nearest and stochastically. Then losses
of training runs, which all see the same batches. The same run with another seed of the initial values and of the
diffusion's noise shows how far apart two runs are that differ in nothing of interest.
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


BETAS2 = (0.95, 0.98, 0.99, 0.999)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MomentDtypesArguments(cli.GinArguments):
    """Flags of the command."""

    steps: int = cli.flag(200, "Steps of each run.", metavar="N", parse=cli.integer(4))
    window: int = cli.flag(50, "Steps whose losses are averaged.", metavar="N", parse=cli.integer(1))


def main(arguments: MomentDtypesArguments) -> int:
    """Prints a line of JSON for every way of rounding, and for every run its mean losses by window."""
    for beta2 in BETAS2:
        for rounding in ("nearest", "stochastic"):
            errors = rounding_errors(beta2, rounding)
            print(json.dumps({"beta2": beta2, "rounding": rounding} | errors), flush=True)
    config = dataclasses.replace(cli.training_config(arguments), steps=arguments.steps)
    for variant in VARIANTS:
        losses = window_losses(with_variant(config, variant), arguments.window)
        print(json.dumps(variant._asdict() | losses), flush=True)
    return 0


def rounding_errors(beta2: float, rounding: str, steps: int = 4000, elements: int = 20_000) -> dict[str, float]:
    """The mean second moment over its float32 value after so many steps, and the relative error of the direction."""
    import jax
    import jax.numpy as jnp

    from mmjax.training.engine.optimizers.moments import round_stochastically

    def rounded(moment: jax.Array, step: jax.Array, stream: int) -> jax.Array:
        if rounding == "nearest":
            return moment.astype(jnp.bfloat16)
        return round_stochastically(moment, step.astype(jnp.uint32) * jnp.uint32(0x9E3779B9), jnp.uint32(stream))

    def update(moments: jax.Array, gradients: jax.Array) -> tuple[jax.Array, jax.Array]:
        first, second = moments.astype(jnp.float32)
        return 0.9 * first + 0.1 * gradients, beta2 * second + (1 - beta2) * jnp.square(gradients)

    def one_step(state: Any, step: jax.Array) -> tuple[Any, None]:
        scale = jnp.where(step < steps // 2, 1.0, 0.1)
        gradients = scale * jax.random.normal(jax.random.fold_in(jax.random.key(0), step), (elements,))
        stored, exact = state
        stored = jnp.stack([rounded(moment, step, stream) for stream, moment in enumerate(update(stored, gradients))])
        return (stored, jnp.stack(update(exact, gradients))), None

    zeros = jnp.zeros((2, elements))
    (stored, exact), _ = jax.lax.scan(one_step, (zeros.astype(jnp.bfloat16), zeros), jnp.arange(steps))
    stored = stored.astype(jnp.float32)
    direction, expected = (first / jnp.sqrt(second) for first, second in (stored, exact))
    return {
        "second_moment": round(float(stored[1].mean() / exact[1].mean()), 3),
        "direction_error": round(float(jnp.linalg.norm(direction - expected) / jnp.linalg.norm(expected)), 4),
    }


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
