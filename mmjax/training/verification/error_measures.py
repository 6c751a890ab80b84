"""Relative errors of losses and gradients."""

import sys
from collections.abc import Mapping

import jax
import numpy as np

from sharding.trees import Tree

SMALLEST_RELATIVE_GRADIENT = 1e-3
"""A parameter's gradient counts as at least this share of its module's root mean square gradient."""

LARGEST_ERROR = sys.float_info.max
"""The error of what is missing or not finite; JSON has no infinity."""

ParameterErrors = dict[str, dict[str, float]]
"""By module and path of a parameter."""


def loss_errors(losses: Mapping[str, float], expected: Mapping[str, float]) -> dict[str, float]:
    """By name of a loss, `|loss - expected| / |expected|`; where zero is expected, the difference itself."""
    return {name: _finite(abs(losses[name] - loss) / (abs(loss) or 1.0)) for name, loss in expected.items()}


def gradient_errors(gradients: Tree, expected: Tree) -> ParameterErrors:
    """By module and parameter, `norm(g - e) / max(norm(e), 1e-3 rms(e of the module) sqrt(size))`.

    A parameter that only one side has, or whose shape differs, has the error `LARGEST_ERROR`. A module of which nothing
    trains has no errors.
    """
    errors = {}
    for module in dict.fromkeys((*expected, *gradients)):
        actual_leaves, expected_leaves = _leaves(gradients.get(module, {})), _leaves(expected.get(module, {}))
        squares = sum(float(np.sum(np.square(leaf))) for leaf in expected_leaves.values())
        rms = np.sqrt(squares / max(1, sum(leaf.size for leaf in expected_leaves.values())))
        errors[module] = {
            path: _error(actual_leaves.get(path), expected_leaves.get(path), rms)
            for path in dict.fromkeys((*expected_leaves, *actual_leaves))
        }
    return errors


def _error(actual: np.ndarray | None, expected: np.ndarray | None, rms: float) -> float:
    if actual is None or expected is None or actual.shape != expected.shape:
        return LARGEST_ERROR
    difference = float(np.linalg.norm(actual - expected))
    smallest_norm = SMALLEST_RELATIVE_GRADIENT * rms * np.sqrt(expected.size)
    norm = max(float(np.linalg.norm(expected)), smallest_norm)
    return _finite(difference / norm if norm else difference and LARGEST_ERROR)


def _finite(error: float) -> float:
    return float(error) if np.isfinite(error) else LARGEST_ERROR


def _leaves(tree: Tree) -> dict[str, np.ndarray]:
    """The leaves of a module by path, in float64."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf, np.float64) for path, leaf in leaves
    }
