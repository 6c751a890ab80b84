"""Optax's transformations and schedules for the algorithms and schedules of `configs.optimizer`.

Every algorithm is `direction -> + weight decay · parameter -> · -learning rate`. All statistics are of one parameter of
one layer, so results do not depend on the division into stages, and the state has the same structure whatever the
learning rate, its schedule and the weight decay.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from configs.optimizer import (
    SGD,
    Adafactor,
    AdamW,
    ConstantRate,
    CosineDecay,
    InverseSquareRootDecay,
    LinearDecay,
    Lion,
    Muon,
    OptimizerConfig,
)
from sharding.trees import Tree

ADAMW_RMS = 0.2
"""Root mean square that AdamW's updates usually have; Muon's are scaled to it (arXiv 2502.16982, section 2.2)."""


def make_transformation(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """The optimizer of one layer, in a run of so many steps; `config.parts` and clipping are left to others."""
    optimizer = optax.chain(
        update_direction(config.algorithm),
        optax.add_decayed_weights(config.weight_decay, mask=_is_decayed),
        optax.scale_by_learning_rate(learning_rate_schedule(config, steps)),
    )
    return _with_selection_biases(optimizer, config.selection_bias_rate)


def _with_selection_biases(optimizer: optax.GradientTransformation, rate: float) -> optax.GradientTransformation:
    """The optimizer, but for the biases by which experts are chosen, whose gradients are excess loads.

    They change by the rate, against the sign of the load (arXiv 2408.15664, algorithm 1). An excess below a thousandth
    of the mean counts as none, because where loads are even rounding errors would decide.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        changes, state = optimizer.update(updates, state, params)

        def change(path: tuple[Any, ...], usual: jax.Array, excess: jax.Array) -> jax.Array:
            if path[-1].key != "selection_bias":
                return usual
            counts = jnp.abs(excess) > 1e-3 * jnp.mean(jnp.abs(excess))
            return (-rate * jnp.sign(excess) * counts).astype(usual.dtype)

        return jax.tree_util.tree_map_with_path(change, changes, updates), state

    return optax.GradientTransformation(optimizer.init, update)


def _is_decayed(parameters: Tree) -> Tree:
    def is_decayed(path: tuple[Any, ...], leaf: jax.Array) -> bool:
        return leaf.ndim >= 2 and not path[-1].key.endswith("_bias")  # experts' biases are [experts, outputs]

    return jax.tree_util.tree_map_with_path(is_decayed, parameters)


# ------------------------------------------------------------------ schedules


def learning_rate_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Learning rate by step: linear warm-up from 0 to the peak, then the configured schedule to the last step.

    Raises:
        UserError: The warm-up is as long as the run.
    """
    warmup = config.resolve_warmup(steps)
    return optax.join_schedules(
        [
            optax.linear_schedule(0.0, config.learning_rate, warmup),
            decay_schedule(config.schedule, config.learning_rate, steps - warmup),
        ],
        [warmup],
    )


@functools.singledispatch
def decay_schedule(schedule: Any, peak: float, steps: int) -> optax.Schedule:
    """Learning rate by steps after the warm-up, which are `steps`."""
    raise TypeError(f"no schedule is known for {type(schedule).__name__}")


@decay_schedule.register
def _constant(schedule: ConstantRate, peak: float, steps: int) -> optax.Schedule:
    return optax.constant_schedule(peak)


@decay_schedule.register
def _cosine(schedule: CosineDecay, peak: float, steps: int) -> optax.Schedule:
    return optax.cosine_decay_schedule(peak, steps, schedule.final_fraction)


@decay_schedule.register
def _linear(schedule: LinearDecay, peak: float, steps: int) -> optax.Schedule:
    return optax.linear_schedule(peak, peak * schedule.final_fraction, steps)


@decay_schedule.register
def _inverse_square_root(schedule: InverseSquareRootDecay, peak: float, steps: int) -> optax.Schedule:
    return lambda step: peak / jnp.sqrt(1.0 + step / schedule.timescale)


# ------------------------------------------------------------------ algorithms


@functools.singledispatch
def update_direction(algorithm: Any) -> optax.GradientTransformation:
    """From gradients to what is subtracted, before weight decay and learning rate."""
    raise TypeError(f"no optimizer is known for {type(algorithm).__name__}")


@update_direction.register
def _adamw(algorithm: AdamW) -> optax.GradientTransformation:
    return optax.scale_by_adam(algorithm.beta1, algorithm.beta2, algorithm.epsilon)


@update_direction.register
def _lion(algorithm: Lion) -> optax.GradientTransformation:
    return optax.scale_by_lion(algorithm.beta1, algorithm.beta2)


@update_direction.register
def _sgd(algorithm: SGD) -> optax.GradientTransformation:
    return optax.trace(algorithm.momentum, algorithm.nesterov)


@update_direction.register
def _adafactor(algorithm: Adafactor) -> optax.GradientTransformation:
    adafactor = optax.adafactor(
        learning_rate=None,
        decay_rate=algorithm.decay_exponent,
        clipping_threshold=algorithm.clipping_threshold,
        multiply_by_parameter_scale=algorithm.relative_step,
    )
    return optax.chain(adafactor, optax.scale(-1.0))  # optax's gives the change itself


@update_direction.register
def _muon(algorithm: Muon) -> optax.GradientTransformation:
    muon = contrib.muon(
        learning_rate=1.0,
        ns_steps=algorithm.iterations,
        beta=algorithm.momentum,
        eps=algorithm.epsilon,
        adam_b1=algorithm.beta1,
        adam_b2=algorithm.beta2,
        muon_weight_dimension_numbers=_matrix_dimensions,  # pyright: ignore[reportArgumentType]
        consistent_rms=ADAMW_RMS,
    )
    return optax.chain(muon, optax.scale(-1.0))


def _matrix_dimensions(parameters: Tree) -> Tree:
    """For every parameter that multiplies activations, its input and output dimensions; None for all others."""

    def dimensions(path: tuple[Any, ...], leaf: jax.Array) -> contrib.MuonDimensionNumbers | None:
        name = path[-1].key
        if name == "kernel":  # [inputs, outputs], or of a convolution [..., inputs, outputs]
            return contrib.MuonDimensionNumbers(tuple(range(leaf.ndim - 1)), leaf.ndim - 1)
        if name in ("gate", "up", "down"):  # of experts [experts, inputs, outputs]; of LoRA [inputs, outputs]
            return contrib.MuonDimensionNumbers(leaf.ndim - 2, leaf.ndim - 1)
        return None

    return jax.tree_util.tree_map_with_path(dimensions, parameters)
