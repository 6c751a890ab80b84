"""The balancing policies that a configuration can name: how samples are put into rows, and rows into steps."""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from data.grouping.groups import Groups
from data.grouping.policies import (
    DeviceGroups,
    FirstFit,
    IterativeSamplingAndFiltering,
    Policy,
    RandomBatches,
    SortedBatches,
)
from data.grouping.steps import form_steps
from data.packing import Capacity

Forming = Callable[
    [Groups, Float[np.ndarray, "n k"], int, np.random.Generator],
    tuple[Int[np.ndarray, "steps rows"], Int[np.ndarray, " left"]],
]
NEARLY_FULL = 0.95  # of a capacity: Q' of Q


@dataclasses.dataclass(frozen=True)
class Grouping:
    """A policy.

    Attributes:
        rows: Makes what puts samples into rows, for the limits of a row (tokens first) and the rows of a step.
        steps: Puts rows into steps.
    """

    rows: Callable[[Float[np.ndarray, " k"], int], Policy]
    steps: Forming


def in_order(
    groups: Groups, sizes: Float[np.ndarray, "n k"], rows: int, random: np.random.Generator
) -> tuple[Int[np.ndarray, "steps rows"], Int[np.ndarray, " left"]]:
    """Steps of groups one behind the other, as the policy left them."""
    whole = len(groups) // rows * rows
    return np.arange(whole).reshape(-1, rows), np.arange(whole, len(groups))


def _isf(limits: Float[np.ndarray, " k"], rows: int) -> Policy:
    # The last limit, on the number of samples, says nothing of work.
    threshold = (*(NEARLY_FULL * limits[:-1]).tolist(), float("inf"))
    return IterativeSamplingAndFiltering(threshold=threshold)


def _most(limits: Float[np.ndarray, " k"]) -> int:
    return int(limits[-1])


GROUPINGS = {
    "first_fit": Grouping(lambda limits, rows: FirstFit(), in_order),
    "isf": Grouping(_isf, form_steps),
    "random": Grouping(lambda limits, rows: RandomBatches(samples=_most(limits)), in_order),
    "sorted": Grouping(lambda limits, rows: SortedBatches(samples=_most(limits), modality=0), in_order),
    "device_group": Grouping(
        lambda limits, rows: DeviceGroups(samples=_most(limits), modality=0, devices=rows), in_order
    ),
}
"""By name: first-fit packing, OmniBal's ISF, and its baselines (arXiv 2407.20761, section 5.1)."""


def limits_of(capacity: Capacity) -> Float[np.ndarray, " k"]:
    """What a row holds at most of everything that is there at all, and of samples."""
    limits = np.array([*capacity.vector, capacity.samples], float)
    return limits[limits > 0]
