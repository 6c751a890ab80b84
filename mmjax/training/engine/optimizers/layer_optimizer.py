"""Optax's transformations for the algorithms of `configs.optimizer`.

Every algorithm is `direction -> + weight decay · parameter -> · -learning rate`. All statistics are of one parameter of
one layer, so results do not depend on the division into stages, and the state has the same structure whatever the
hyperparameters.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

from configs.optimizer import SGD, Adafactor, AdamW, Algorithm, Lion, MomentDtype, Muon, moment_dtype
from mmjax.training.engine.optimizers.hyperparameters import Hyperparameters, learning_rate
from mmjax.training.engine.optimizers.moments import store_moments, widen_moments
from sharding.trees import Tree

ADAMW_RMS = 0.2
"""Root mean square that AdamW's updates usually have; Muon's are scaled to it (arXiv 2502.16982, section 2.2)."""


@dataclasses.dataclass(frozen=True)
class LayerOptimizer:
    """The optimizer of one layer, without clipping, which `optimizer.py` applies.

    Attributes:
        algorithm: The algorithm of all parts, whose settings are constants of the program that updates.
    """

    algorithm: Algorithm

    def init(self, parameters: Tree) -> Any:
        """The state before the first update."""
        state = self._transformation(Hyperparameters(*np.zeros(len(Hyperparameters._fields)))).init(parameters)
        return store_moments(state, parameters, self._moment_dtype, 0, "")  # zeros are exact

    def update(
        self, gradients: Tree, state: Any, parameters: Tree, hyperparameters: Hyperparameters, name: str
    ) -> tuple[Tree, Any]:
        """Returns the change of the parameters, and the state after it; selection biases change by their own rate.

        Args:
            gradients: Gradients of the layer, clipped.
            state: Its state.
            parameters: Its parameters.
            hyperparameters: Hyperparameters of its part.
            name: Path of the layer, `module/piece/layer`, by which the rounding of its moments differs from others'.
        """
        updates = state[-1].count  # of the learning rate's schedule
        with jax.numpy_dtype_promotion("standard"):  # optax computes float ** integer
            wide = widen_moments(state, parameters)
            changes, wide = self._transformation(hyperparameters).update(gradients, wide, parameters)
            changes = _with_selection_biases(changes, gradients, hyperparameters.selection_bias_rate)
        return changes, store_moments(wide, parameters, self._moment_dtype, updates, name)

    @property
    def rounds_moments(self) -> bool:
        """Whether moments are stored in another type than they are computed in."""
        return self._moment_dtype != "float32"

    @property
    def _moment_dtype(self) -> MomentDtype:
        return moment_dtype(self.algorithm)

    def _transformation(self, hyperparameters: Hyperparameters) -> optax.GradientTransformation:
        return optax.chain(
            update_direction(self.algorithm),
            optax.add_decayed_weights(hyperparameters.weight_decay, mask=_is_decayed),
            optax.scale_by_learning_rate(functools.partial(learning_rate, hyperparameters)),
        )


def _with_selection_biases(changes: Any, gradients: Tree, rate: Any) -> Tree:
    """Replaces the changes of the biases by which experts are chosen, whose gradients are excess loads.

    They change by the rate, against the sign of the load (arXiv 2408.15664, algorithm 1). An excess below a thousandth
    of the mean counts as none, because where loads are even rounding errors would decide.
    """

    def change(path: tuple[Any, ...], usual: jax.Array, excess: jax.Array) -> jax.Array:
        if path[-1].key != "selection_bias":
            return usual
        counts = jnp.abs(excess) > 1e-3 * jnp.mean(jnp.abs(excess))
        return (-rate * jnp.sign(excess) * counts).astype(usual.dtype)

    return jax.tree_util.tree_map_with_path(change, changes, gradients)


def _is_decayed(parameters: Tree) -> Tree:
    def is_decayed(path: tuple[Any, ...], leaf: jax.Array) -> bool:
        return leaf.ndim >= 2 and not path[-1].key.endswith("_bias")  # experts' biases are [experts, outputs]

    return jax.tree_util.tree_map_with_path(is_decayed, parameters)


# ------------------------------------------------------------------ algorithms


@functools.singledispatch
def update_direction(algorithm: Any) -> optax.GradientTransformation:
    """Returns the transformation from gradients to the update direction, before weight decay and learning rate."""
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
