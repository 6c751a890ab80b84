"""Steps of groups: how the groups of a window of samples become steps, and which of them wait for the next window.

The step planner calls `form_window_steps` for every window.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from data.packing.grouping.algorithms import GroupingAlgorithm
from data.packing.grouping.groups import Groups

FormSteps = Callable[
    [Groups, Float[np.ndarray, "n k"], int, np.random.Generator],
    tuple[Int[np.ndarray, "steps rows"], Int[np.ndarray, " leftover"]],
]
"""(groups, sizes of samples, rows of a step, random) -> the groups of every step, and the groups that fill no step."""


def consecutive_steps(
    groups: Groups, sizes: Float[np.ndarray, "n k"], rows: int, random: np.random.Generator
) -> tuple[Int[np.ndarray, "steps rows"], Int[np.ndarray, " leftover"]]:
    """Steps of consecutive groups, in the order of the grouping algorithm."""
    whole = len(groups) // rows * rows
    return np.arange(whole).reshape(-1, rows), np.arange(whole, len(groups))


def balanced_steps(
    groups: Groups, sizes: Float[np.ndarray, "n k"], rows: int, random: np.random.Generator
) -> tuple[Int[np.ndarray, "steps rows"], Int[np.ndarray, " leftover"]]:
    """Steps of `rows` groups of similar size, in random order, and the groups that fill no step.

    If all replicas of a step have about the same load, none waits. The groups are bisected repeatedly, each subset by
    the modality in which it varies most, until a subset is a step. The leftover groups are random, so that no sample is
    left over in every epoch, and so is the place of a group within its step.

    Args:
        groups: Groups to distribute.
        sizes: Units of every sample, by modality.
        rows: Groups of a step.
        random: Source of the order, places and leftover groups.
    """
    if rows < 1:
        raise ValueError(f"steps of {rows} groups; they need at least 1")
    shuffled = random.permutation(len(groups))
    count = len(groups) // rows
    chosen, leftover = shuffled[: count * rows], shuffled[count * rows :]
    steps = chosen[_bisected_order(groups.sums(sizes)[chosen], rows)].reshape(count, rows)
    return random.permuted(steps[random.permutation(count)], axis=1), leftover


def _bisected_order(units: Float[np.ndarray, "g k"], rows: int) -> Int[np.ndarray, " g"]:
    """An order of the groups in which every `rows` neighbours are similar."""
    order = np.arange(len(units))
    part_steps = np.array([len(units) // rows] if len(units) else [], np.int64)  # number of steps of each subset
    while (part_steps > 1).any():
        starts = (np.cumsum(part_steps) - part_steps) * rows
        part = np.repeat(np.arange(len(part_steps)), part_steps * rows)
        order = order[_order_within_parts(units[order], starts, part)]
        part_steps = np.stack([part_steps - part_steps // 2, part_steps // 2], axis=1).ravel()
        part_steps = part_steps[part_steps > 0]
    return order


def _order_within_parts(
    units: Float[np.ndarray, "g k"], starts: Int[np.ndarray, " parts"], part: Int[np.ndarray, " g"]
) -> Int[np.ndarray, " g"]:
    """An order within each subset, by the modality with the largest relative difference of units."""
    largest, smallest = (operation.reduceat(units, starts, axis=0) for operation in (np.maximum, np.minimum))
    spread = np.divide(largest - smallest, largest, out=np.zeros_like(largest), where=largest > 0)
    modality = spread.argmax(axis=1)
    return np.lexsort((units[np.arange(len(units)), modality[part]], part))


@dataclasses.dataclass(frozen=True, eq=False)
class WindowSteps:
    """The steps of a window of samples.

    Attributes:
        groups: The samples of every row.
        steps: int64[steps, rows], indices into `groups`.
        leftover: Groups in no step: first the whole groups that fill no step, then the groups that wait to be filled.
    """

    groups: Groups
    steps: Int[np.ndarray, "steps rows"]
    leftover: Int[np.ndarray, " leftover"]


def form_window_steps(
    units: Float[np.ndarray, "n k"],
    limits: Float[np.ndarray, " k"],
    group_samples: GroupingAlgorithm,
    form_steps: FormSteps,
    rows: int,
    random: np.random.Generator,
    *,
    more_windows: bool,
) -> WindowSteps:
    """Groups the samples of a window into rows, and the rows into steps.

    Args:
        units: Units of every sample, by modality.
        limits: Capacity of a row, by modality.
        group_samples: Puts samples into rows.
        form_steps: Puts rows into steps.
        rows: Rows of a step.
        random: Source of random choices.
        more_windows: Whether there is a next window, for which open rows wait (`GroupingAlgorithm.open_groups`).
    """
    groups = group_samples(units, limits, random)
    fill = (groups.sums(units) / limits).max(axis=1)
    # Rows stay open at the end of a window. At most one step of them waits for the next one.
    waiting = np.sort(group_samples.open_groups(fill)[: rows if more_windows else 0])
    chosen = np.setdiff1d(np.arange(len(groups)), waiting)
    steps, leftover = form_steps(groups.take(chosen), units, rows, random)
    return WindowSteps(groups, chosen[steps], np.concatenate([chosen[leftover], waiting]))
