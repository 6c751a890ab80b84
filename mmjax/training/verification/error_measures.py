"""How far losses and gradients are from what they should be."""

import sys
from collections.abc import Mapping

import jax
import numpy as np

from sharding.trees import Tree

FLOOR = 1e-3
LARGEST_ERROR = sys.float_info.max
"""Stands for what is missing or not finite; JSON has no infinity."""

ParameterErrors = dict[str, dict[str, float]]
"""By module and parameter."""


def loss_errors(found: Mapping[str, float], expected: Mapping[str, float]) -> dict[str, float]:
    """By module, the relative difference; of a loss that is zero the difference itself."""
    return {name: _finite(abs(found[name] - loss) / (abs(loss) or 1.0)) for name, loss in expected.items()}


def gradient_errors(found: Tree, expected: Tree) -> ParameterErrors:
    """By module and parameter: norm(difference) / max(norm(gradient), 1e-3 rms(module's gradient) sqrt(size)).

    A parameter that only one side has, or whose shape differs, is infinitely far (`MOST`).
    """
    errors = {}
    for module in expected:
        there, here = _leaves(found.get(module, {})), _leaves(expected[module])
        squares = sum(float(np.sum(np.square(leaf))) for leaf in here.values())
        rms = np.sqrt(squares / sum(leaf.size for leaf in here.values()))
        errors[module] = {path: _error(there.get(path), here.get(path), rms) for path in dict.fromkeys((*here, *there))}
    return errors


def _error(found: np.ndarray | None, expected: np.ndarray | None, rms: float) -> float:
    if found is None or expected is None or found.shape != expected.shape:
        return LARGEST_ERROR
    difference = float(np.linalg.norm(found - expected))
    scale = max(float(np.linalg.norm(expected)), FLOOR * rms * np.sqrt(expected.size))
    return _finite(difference / scale if scale else difference and LARGEST_ERROR)


def _finite(error: float) -> float:
    return float(error) if np.isfinite(error) else LARGEST_ERROR


def _leaves(tree: Tree) -> dict[str, np.ndarray]:
    """Leaves of a module by their paths, in float64."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf, np.float64) for path, leaf in leaves
    }
