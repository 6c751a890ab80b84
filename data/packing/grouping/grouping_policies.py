"""The balancing policies that a configuration can name: how samples are put into rows, and rows into steps."""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from data.data_config import RowCapacity
from data.packing.grouping.algorithms import (
    DeviceBalancedGroups,
    FirstFit,
    GroupingAlgorithm,
    IterativeSamplingAndFiltering,
    RandomGroups,
    SortedGroups,
)
from data.packing.grouping.balanced_steps import form_balanced_steps
from data.packing.grouping.groups import Groups

FormSteps = Callable[
    [Groups, Float[np.ndarray, "n k"], int, np.random.Generator],
    tuple[Int[np.ndarray, "steps rows"], Int[np.ndarray, " left"]],
]
NEARLY_FULL = 0.95  # of a capacity: Q' of Q


@dataclasses.dataclass(frozen=True)
class GroupingPolicy:
    """A policy.

    Attributes:
        rows: Makes what puts samples into rows, for the limits of a row (tokens first) and the rows of a step.
        steps: Puts rows into steps.
    """

    make_algorithm: Callable[[Float[np.ndarray, " k"], int], GroupingAlgorithm]
    form_steps: FormSteps


def consecutive_steps(
    groups: Groups, sizes: Float[np.ndarray, "n k"], rows: int, random: np.random.Generator
) -> tuple[Int[np.ndarray, "steps rows"], Int[np.ndarray, " left"]]:
    """Steps of groups one behind the other, as the policy left them."""
    whole = len(groups) // rows * rows
    return np.arange(whole).reshape(-1, rows), np.arange(whole, len(groups))


def _isf(limits: Float[np.ndarray, " k"], rows: int) -> GroupingAlgorithm:
    # The last limit, on the number of samples, says nothing of work.
    threshold = (*(NEARLY_FULL * limits[:-1]).tolist(), float("inf"))
    return IterativeSamplingAndFiltering(threshold=threshold)


def _most(limits: Float[np.ndarray, " k"]) -> int:
    return int(limits[-1])


GROUPING_POLICIES = {
    "first_fit": GroupingPolicy(lambda limits, rows: FirstFit(), consecutive_steps),
    "isf": GroupingPolicy(_isf, form_balanced_steps),
    "random": GroupingPolicy(lambda limits, rows: RandomGroups(samples=_most(limits)), consecutive_steps),
    "sorted": GroupingPolicy(lambda limits, rows: SortedGroups(samples=_most(limits), modality=0), consecutive_steps),
    "device_group": GroupingPolicy(
        lambda limits, rows: DeviceBalancedGroups(samples=_most(limits), modality=0, devices=rows), consecutive_steps
    ),
}
"""By name: first-fit packing, OmniBal's ISF, and its baselines (arXiv 2407.20761, section 5.1)."""


def row_limits(capacity: RowCapacity) -> Float[np.ndarray, " k"]:
    """What a row holds at most of everything that is there at all, and of samples."""
    limits = np.array([*capacity.vector, capacity.samples], float)
    return limits[limits > 0]
