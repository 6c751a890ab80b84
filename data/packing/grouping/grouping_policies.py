"""Grouping policies by name: how samples are grouped into rows, and rows into steps.

`DataConfig.grouping` is one of these names.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from data.data_config import RowCapacity
from data.packing.grouping.algorithms import (
    DeviceBalancedGroups,
    FirstFit,
    GroupingAlgorithm,
    IterativeSamplingAndFiltering,
    RandomGroups,
    SortedGroups,
)
from data.packing.grouping.post_balanced import PostBalancedGroups
from data.packing.grouping.steps import FormSteps, balanced_steps, consecutive_steps

ISF_THRESHOLD = 0.95
"""Q' as a share of Q."""


@dataclasses.dataclass(frozen=True)
class GroupingPolicy:
    """A policy by which the samples of a window become rows, and rows become steps.

    Attributes:
        make_algorithm: Makes the algorithm that groups samples into rows, from the limits of a row (`row_limits`) and
            the number of rows of a step.
        form_steps: Groups rows into steps.
    """

    make_algorithm: Callable[[Float[np.ndarray, " k"], int], GroupingAlgorithm]
    form_steps: FormSteps


def _isf(limits: Float[np.ndarray, " k"], rows: int) -> GroupingAlgorithm:
    # The last limit bounds the number of samples, which is no measure of work.
    threshold = (*(ISF_THRESHOLD * limits[:-1]).tolist(), float("inf"))
    return IterativeSamplingAndFiltering(threshold=threshold)


def _random(limits: Float[np.ndarray, " k"], rows: int) -> GroupingAlgorithm:
    return RandomGroups(samples=int(limits[-1]))


def _sorted(limits: Float[np.ndarray, " k"], rows: int) -> GroupingAlgorithm:
    return SortedGroups(samples=int(limits[-1]), modality=0)


def _device_group(limits: Float[np.ndarray, " k"], rows: int) -> GroupingAlgorithm:
    return DeviceBalancedGroups(samples=int(limits[-1]), modality=0, devices=rows)


def _post_balanced(limits: Float[np.ndarray, " k"], rows: int) -> GroupingAlgorithm:
    return PostBalancedGroups(rows=rows)


GROUPING_POLICIES: dict[str, GroupingPolicy] = {
    "first_fit": GroupingPolicy(lambda limits, rows: FirstFit(), consecutive_steps),
    "isf": GroupingPolicy(_isf, balanced_steps),
    "random": GroupingPolicy(_random, consecutive_steps),
    "sorted": GroupingPolicy(_sorted, consecutive_steps),
    "device_group": GroupingPolicy(_device_group, consecutive_steps),
    "post_balanced": GroupingPolicy(_post_balanced, consecutive_steps),
}
"""First-fit packing, OmniBal's ISF, OmniBal's baselines (arXiv 2407.20761, section 5.1), and OrchMLLM's post-balancing
of the backbone (arXiv 2503.23830, section 5.1)."""


def row_limits(capacity: RowCapacity) -> Float[np.ndarray, " k"]:
    """The capacities of a row that are not zero, tokens first, and the number of samples last."""
    limits = np.array([*capacity.vector, capacity.samples], float)
    return limits[limits > 0]
