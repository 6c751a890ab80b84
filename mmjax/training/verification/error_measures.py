"""Relative errors of losses and gradients.

`comparison.py` compares them with tolerances.
"""

import math
import sys
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from sharding.trees import Tree

SMALLEST_RELATIVE_GRADIENT = 1e-3
"""A parameter's gradient counts as at least this share of its module's root mean square gradient."""

LARGEST_ERROR = sys.float_info.max
"""The error of a missing or non-finite value; JSON has no infinity."""

ParameterErrors = dict[str, dict[str, float]]
"""Errors by module and path of a parameter."""


def loss_errors(losses: Mapping[str, float], expected: Mapping[str, float]) -> dict[str, float]:
    """Computes `|loss - expected| / |expected|` by name of a loss; where zero is expected, the difference itself.

    A loss that is missing has the error `LARGEST_ERROR`.
    """
    return {
        name: _finite(abs(losses.get(name, math.nan) - loss) / (abs(loss) or 1.0)) for name, loss in expected.items()
    }


def gradient_errors(gradients: Tree, expected: Tree) -> ParameterErrors:
    """Computes `norm(g - e) / max(norm(e), 1e-3 rms(e of the module) sqrt(size))` by module and parameter.

    A parameter that only one side has, or whose shape differs, has the error `LARGEST_ERROR`. A module of which nothing
    trains has no errors.
    """
    errors = {}
    for module in dict.fromkeys((*expected, *gradients)):
        actual_leaves, expected_leaves = _leaves(gradients.get(module, {})), _leaves(expected.get(module, {}))
        smallest = _smallest_norms(expected_leaves)
        errors[module] = {
            path: _error(actual_leaves.get(path), expected_leaves.get(path), smallest.get(path, 0.0))
            for path in dict.fromkeys((*expected_leaves, *actual_leaves))
        }
    return errors


def zero_gradients(expected: Tree) -> dict[str, frozenset[str]]:
    """Returns, by module, the parameters whose gradient is zero but for rounding (a key's bias changes no softmax).

    Their norm is less than `1e-3 rms(e of the module) sqrt(size)`, by which their errors are divided.
    """
    zero = {}
    for module, tree in expected.items():
        leaves = _leaves(tree)
        smallest = _smallest_norms(leaves)
        zero[module] = frozenset(path for path, leaf in leaves.items() if np.linalg.norm(leaf) < smallest[path])
    return zero


def gradient_scales(gradients: Tree, expected: Tree) -> dict[str, float]:
    """Computes `<g, e> / <e, e>` over all parameters of each module: 1 if the gradient is right in its own direction.

    Rounding errors mostly average out in it, unlike a wrong factor. Modules without gradients are left out.
    """
    scales = {}
    for module, tree in expected.items():
        actual_leaves, expected_leaves = _leaves(gradients.get(module, {})), _leaves(tree)
        pairs = [(actual_leaves.get(path), leaf) for path, leaf in expected_leaves.items()]
        squares = sum(float(np.vdot(leaf, leaf)) for leaf in expected_leaves.values())
        if squares:
            product = sum(float(np.vdot(g, e)) for g, e in pairs if g is not None and g.shape == e.shape)
            scales[module] = product / squares
    return scales


def mean_scale_error(scales: Sequence[float], expected: Sequence[float]) -> float:
    """Computes the difference of the means of two samples of scales (`gradient_scales`)."""
    return _finite(abs(float(np.mean(scales)) - float(np.mean(expected))))


def standard_error(expected: Sequence[float]) -> float:
    """Estimates the standard deviation of `mean_scale_error` between two samples like the given one."""
    return float(np.std(expected) * np.sqrt(2 / len(expected)))


def change_error(before: np.ndarray, after: np.ndarray | None, expected: np.ndarray, tolerance: float) -> float:
    """Computes the error of a parameter's change: `norm(a - e) / (norm(e - before) + eps / tolerance norm(e))`.

    Here a is the parameter after the update, and e its expected value. An error of `tolerance` thus allows for rounding
    the float32 parameter itself, which may be far larger than its change.

    Args:
        before: The parameter before the update.
        after: The parameter after the update; None if it is missing.
        expected: The expected parameter after the update.
        tolerance: The largest error that is accepted.
    """
    if after is None or after.shape != expected.shape:
        return LARGEST_ERROR
    old, new, right = (array.astype(np.float64) for array in (before, after, expected))
    rounding = float(np.finfo(np.float32).eps) / tolerance * float(np.linalg.norm(right))
    norm = float(np.linalg.norm(right - old)) + rounding
    difference = float(np.linalg.norm(new - right))
    return _finite(difference / norm if norm else difference and LARGEST_ERROR)


def state_error(state: np.ndarray | None, expected: np.ndarray) -> float:
    """Computes the error `norm(s - e) / norm(e)` of a leaf of the optimizer state; whole numbers must be equal.

    Of numbers in bfloat16 some may be the neighbour of the expected one: those that were rounded from numbers of which
    rounding errors decide to which side they go, one in a hundred at most.
    """
    if state is None or state.shape != expected.shape:
        return LARGEST_ERROR
    if np.issubdtype(expected.dtype, np.integer):
        return 0.0 if np.array_equal(state, expected) else LARGEST_ERROR
    right = expected.astype(np.float64)
    difference = np.abs(state.astype(np.float64) - right)
    if expected.dtype == jnp.bfloat16 and np.count_nonzero(difference) <= 1 + difference.size / 100:
        difference = np.maximum(difference - float(jnp.finfo(jnp.bfloat16).eps) * np.abs(right), 0.0)
    norm = max(float(np.linalg.norm(right)), float(np.finfo(np.float32).tiny))
    return _finite(float(np.linalg.norm(difference)) / norm)


def global_norm(gradients: Tree) -> float:
    """Computes the norm of all gradients of all modules, in float64."""
    return float(np.sqrt(sum(np.vdot(leaf, leaf) for tree in gradients.values() for leaf in _leaves(tree).values())))


def _smallest_norms(leaves: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns the lower bound of the norm by which the error of a parameter's gradient is divided, by path."""
    squares = sum(float(np.vdot(leaf, leaf)) for leaf in leaves.values())
    rms = np.sqrt(squares / max(1, sum(leaf.size for leaf in leaves.values())))
    return {path: SMALLEST_RELATIVE_GRADIENT * float(rms) * np.sqrt(leaf.size) for path, leaf in leaves.items()}


def _error(actual: np.ndarray | None, expected: np.ndarray | None, smallest_norm: float) -> float:
    if actual is None or expected is None or actual.shape != expected.shape:
        return LARGEST_ERROR
    difference = float(np.linalg.norm(actual - expected))
    norm = max(float(np.linalg.norm(expected)), smallest_norm)
    return _finite(difference / norm if norm else difference and LARGEST_ERROR)


def _finite(error: float) -> float:
    return float(error) if np.isfinite(error) else LARGEST_ERROR


def _leaves(tree: Tree) -> dict[str, np.ndarray]:
    """Returns the leaves of a module by path, in float64."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf, np.float64) for path, leaf in leaves
    }
