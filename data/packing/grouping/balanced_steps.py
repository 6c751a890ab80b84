"""Steps of groups that are alike: when all instances of a step hold about the same, none waits."""

import numpy as np
from jaxtyping import Float, Int

from data.packing.grouping.groups import Groups


def form_balanced_steps(
    groups: Groups, sizes: Float[np.ndarray, "n k"], rows: int, random: np.random.Generator
) -> tuple[Int[np.ndarray, "steps rows"], Int[np.ndarray, " left"]]:
    """Steps of `rows` groups of like size, in a random order; and the groups that fill no step.

    All groups are halved again and again, each part by the modality in which it spreads most, until a part is a step.
    Which groups are left is random, so that none is left in every epoch, and so is a group's place in its step.

    Args:
        groups: Groups to arrange.
        sizes: Units of every sample, by modality.
        rows: Groups of a step.
        random: Draws order, places and what is left.
    """
    if rows < 1:
        raise ValueError(f"steps of {rows} groups; they need at least 1")
    shuffled = random.permutation(len(groups))
    steps = len(groups) // rows
    kept, left = shuffled[: steps * rows], shuffled[steps * rows :]
    found = kept[_halve(groups.sums(sizes)[kept], rows)].reshape(steps, rows)
    return random.permuted(found[random.permutation(steps)], axis=1), left


def _halve(units: Float[np.ndarray, "g k"], rows: int) -> Int[np.ndarray, " g"]:
    """An order of the groups in which every `rows` neighbours are alike."""
    order = np.arange(len(units))
    parts = np.array([len(units) // rows] if len(units) else [], np.int64)  # steps of each
    while (parts > 1).any():
        starts = (np.cumsum(parts) - parts) * rows
        part = np.repeat(np.arange(len(parts)), parts * rows)
        order = order[_sorted_parts(units[order], starts, part)]
        parts = np.stack([parts - parts // 2, parts // 2], axis=1).ravel()
        parts = parts[parts > 0]
    return order


def _sorted_parts(
    units: Float[np.ndarray, "g k"], starts: Int[np.ndarray, " parts"], part: Int[np.ndarray, " g"]
) -> Int[np.ndarray, " g"]:
    """An order within each part, by the modality whose units differ most from the largest there."""
    largest, least = (operation.reduceat(units, starts, axis=0) for operation in (np.maximum, np.minimum))
    spread = np.divide(largest - least, largest, out=np.zeros_like(largest), where=largest > 0)
    modality = spread.argmax(axis=1)
    return np.lexsort((units[np.arange(len(units)), modality[part]], part))
