"""Random packed rows, and attention over them in float64 by its definition, with its gradients."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st


class AttentionCase(NamedTuple):
    """Packed rows; `keys`, `branches` and `window` may be None."""

    segments: np.ndarray
    keys: np.ndarray | None
    branches: np.ndarray | None
    causal: bool
    window: int | None = None

    @property
    def positions(self) -> np.ndarray:
        """Position in its segment of each token; every branch continues from the end of the trunk."""
        positions = np.zeros_like(self.segments)
        branches = np.zeros_like(self.segments) if self.branches is None else self.branches
        for r, i in np.ndindex(*positions.shape):
            earlier = self.segments[r, :i] == self.segments[r, i]
            on_path = (branches[r, :i] == 0) | (branches[r, :i] == branches[r, i])
            positions[r, i] = np.sum(earlier & on_path)
        return positions


def row(random: np.random.Generator, length: int, first: int = 1) -> np.ndarray:
    """Segments in order, with padding at the end and perhaps between; perhaps nothing but padding."""
    ids = np.sort(random.integers(first, first + random.integers(1, 6), length)).astype(np.int32)
    ids[length - random.integers(0, length + 1) :] = 0
    return np.where(random.random(length) < random.choice([0.0, 0.1]), 0, ids).astype(np.int32)


def rows(random: np.random.Generator, count: int, length: int) -> np.ndarray:
    """Random rows `[count, length]`."""
    return np.stack([row(random, length) for _ in range(count)])


def branches_of(random: np.random.Generator, segments: np.ndarray) -> np.ndarray:
    """Within each segment a trunk, then branches."""
    branches = np.zeros_like(segments)
    for row_segments, row_branches in zip(segments, branches, strict=True):
        for segment in np.unique(row_segments[row_segments > 0]):
            positions = np.flatnonzero(row_segments == segment)
            row_branches[positions] = np.sort(random.integers(0, 4, len(positions)))
    return branches


@st.composite
def cases(draw, lengths: tuple[int, ...] = (1, 9, 23, 40)) -> AttentionCase:
    """Self-attention, causal or not, with branches or not, and attention to other keys."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, length = 2, draw(st.sampled_from(lengths))
    kind = draw(st.sampled_from(["encoder", "causal", "branches", "cross"]))
    segments = rows(random, count, length)
    if kind == "cross":
        return AttentionCase(segments, rows(random, count, draw(st.sampled_from(lengths))), None, False)
    branches = branches_of(random, segments) if kind == "branches" else None
    window = draw(st.sampled_from([None, 1, 3, 10])) if kind != "encoder" else None
    return AttentionCase(segments, None, branches, kind != "encoder", window)


def expected_mask(case: AttentionCase) -> np.ndarray:
    """Which query attends to which key, position by position: `[r, s, t]`."""
    keys = case.segments if case.keys is None else case.keys
    mask, positions = np.zeros((*case.segments.shape, keys.shape[1]), bool), case.positions
    for r, i, j in np.ndindex(*mask.shape):
        visible = case.segments[r, i] == keys[r, j] > 0 and (not case.causal or j <= i)
        if case.branches is not None:
            visible = visible and case.branches[r, j] in (0, case.branches[r, i])
        if case.window is not None:
            visible = visible and positions[r, i] - positions[r, j] < case.window
        mask[r, i, j] = visible
    return mask


def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, cotangent: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, ...]:
    """The output and the gradients of query, key and value, in float64."""
    query, key, value, cotangent = (np.asarray(x, np.float64) for x in (query, key, value, cotangent))
    return _attention(query, key, value, cotangent, softmax_weights(query, key, mask), subtract=np.subtract)


def attention_magnitudes(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, cotangent: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, ...]:
    """The same sums over absolute values of their terms: what rounding errors are proportional to if terms cancel."""
    query, key, value, cotangent = (np.asarray(x, np.float64) for x in (query, key, value, cotangent))
    weights = softmax_weights(query, key, mask)
    return _attention(*map(np.abs, (query, key, value, cotangent)), weights, subtract=np.add)


def softmax_weights(query: np.ndarray, key: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The share of every visible key in a query's output: `[r, h, s, t]`; zeros for a query without one."""
    group, scale = query.shape[2] // key.shape[2], query.shape[3] ** -0.5
    keys = np.repeat(key, group, axis=2)
    scores = np.where(mask[:, None], np.einsum("rshe,rthe->rhst", query, keys) * scale, -np.inf)
    maximum = np.max(scores, axis=-1, keepdims=True, initial=-1e300)
    exponentials = np.exp(scores - maximum)
    return exponentials / np.maximum(exponentials.sum(axis=-1, keepdims=True), 1e-300)


def _attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    cotangent: np.ndarray,
    weights: np.ndarray,
    subtract: np.ufunc,
) -> tuple[np.ndarray, ...]:
    group, scale = query.shape[2] // key.shape[2], query.shape[3] ** -0.5
    keys, values = (np.repeat(x, group, axis=2) for x in (key, value))
    output = np.einsum("rhst,rthe->rshe", weights, values)
    weight_gradient = np.einsum("rshe,rthe->rhst", cotangent, values)
    mean_gradient = np.sum(weight_gradient * weights, axis=-1, keepdims=True)
    score_gradient = weights * subtract(weight_gradient, mean_gradient) * scale

    def sum_over_group(x: np.ndarray) -> np.ndarray:
        return x.reshape(*key.shape[:3], group, -1).sum(axis=3)

    key_gradient = sum_over_group(np.einsum("rhst,rshe->rthe", score_gradient, query))
    value_gradient = sum_over_group(np.einsum("rhst,rshe->rthe", weights, cotangent))
    return output, np.einsum("rhst,rthe->rshe", score_gradient, keys), key_gradient, value_gradient
