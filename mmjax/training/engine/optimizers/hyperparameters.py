"""Hyperparameters as arguments of compiled updates, so that one program serves all their values; learning rates.

A compiled update depends on the algorithm with its settings, such as the betas of AdamW, and on which parts train. The
learning rate with its warm-up and schedule, the weight decay and the rate of selection biases are arguments.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from configs.optimizer import ConstantRate, CosineDecay, InverseSquareRootDecay, LinearDecay, OptimizerConfig


class Hyperparameters(NamedTuple):
    """The hyperparameters of the parts that share their settings, as numbers on the host or in a program.

    Attributes:
        peak_rate: Learning rate after the warm-up.
        warmup_steps: Steps of linear warm-up from 0.
        decay_steps: Steps of the schedule, from the warm-up to the end of the run.
        schedule: Index of the schedule in `_FORMULAS`.
        first: First coefficient of its formula.
        second: Second coefficient; 0 where it has none.
        weight_decay: See `OptimizerConfig`.
        selection_bias_rate: See `OptimizerConfig`.
    """

    peak_rate: Any
    warmup_steps: Any
    decay_steps: Any
    schedule: Any
    first: Any
    second: Any
    weight_decay: Any
    selection_bias_rate: Any


def make_hyperparameters(config: OptimizerConfig, steps: int) -> Hyperparameters:
    """The hyperparameters of a run of this many steps.

    Raises:
        UserError: The warm-up is as long as the run.
    """
    warmup = config.resolve_warmup(steps)
    schedule, first, second = _schedule_numbers(config.schedule, config.learning_rate)
    return Hyperparameters(
        peak_rate=config.learning_rate,
        warmup_steps=warmup,
        decay_steps=steps - warmup,
        schedule=schedule,
        first=first,
        second=second,
        weight_decay=config.weight_decay,
        selection_bias_rate=config.selection_bias_rate,
    )


def learning_rate(hyperparameters: Hyperparameters, step: jax.typing.ArrayLike) -> jax.Array:
    """The learning rate of the update after `step` updates: linear warm-up from 0 to the peak, then the schedule."""
    step = jnp.asarray(step, jnp.float32)
    peak, warmup = hyperparameters.peak_rate, hyperparameters.warmup_steps
    rising = -peak * (1 - jnp.minimum(step, warmup) / jnp.maximum(warmup, 1)) + peak
    after = jnp.stack([jnp.asarray(formula(hyperparameters, step - warmup), jnp.float32) for formula in _FORMULAS])
    chosen = jnp.asarray(hyperparameters.schedule, jnp.int32)
    return jnp.where(step < warmup, rising, after[chosen])


# ------------------------------------------------------------------ schedules after the warm-up


@functools.singledispatch
def _schedule_numbers(schedule: Any, peak: float) -> tuple[int, float, float]:
    """Index of a schedule's formula, and its two coefficients, whose differences are computed in float64."""
    raise TypeError(f"no schedule is known for {type(schedule).__name__}")


@_schedule_numbers.register
def _(schedule: ConstantRate, peak: float) -> tuple[int, float, float]:
    return _FORMULAS.index(_constant), 0.0, 0.0


@_schedule_numbers.register
def _(schedule: CosineDecay, peak: float) -> tuple[int, float, float]:
    return _FORMULAS.index(_cosine), 1 - schedule.final_fraction, schedule.final_fraction


@_schedule_numbers.register
def _(schedule: LinearDecay, peak: float) -> tuple[int, float, float]:
    last = peak * schedule.final_fraction
    return _FORMULAS.index(_linear), peak - last, last


@_schedule_numbers.register
def _(schedule: InverseSquareRootDecay, peak: float) -> tuple[int, float, float]:
    return _FORMULAS.index(_inverse_square_root), schedule.timescale, 0.0


def _constant(numbers: Hyperparameters, step: jax.Array) -> jax.Array:
    return numbers.peak_rate


def _cosine(numbers: Hyperparameters, step: jax.Array) -> jax.Array:
    turned = jnp.pi * jnp.minimum(step, numbers.decay_steps) / numbers.decay_steps
    return numbers.peak_rate * (numbers.first * (0.5 * (1 + jnp.cos(turned))) + numbers.second)


def _linear(numbers: Hyperparameters, step: jax.Array) -> jax.Array:
    left = 1 - jnp.clip(step, 0, numbers.decay_steps) / numbers.decay_steps
    return numbers.first * left + numbers.second


def _inverse_square_root(numbers: Hyperparameters, step: jax.Array) -> jax.Array:
    return numbers.peak_rate / jnp.sqrt(1.0 + step / numbers.first)


_FORMULAS: tuple[Callable[[Hyperparameters, jax.Array], jax.Array], ...]
_FORMULAS = (_constant, _cosine, _linear, _inverse_square_root)
"""The learning rate by steps after the warm-up, of each schedule; a program computes all and takes one of them."""
