"""Grouping policies by name: how samples are grouped into rows, and rows into steps.

`DataConfig.grouping` is one of these names.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

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
"""Q' as a share of Q, of quantities without a threshold (`DataConfig.isf_thresholds`)."""


@dataclasses.dataclass(frozen=True)
class GroupingPolicy:
    """A policy by which the samples of a window become rows, and rows become steps.

    Attributes:
        make_algorithm: Makes the algorithm that groups samples into rows, from the limits of a row (`row_limits`),
            Q' of ISF for each of them (`isf_thresholds`), and the number of rows of a step.
        form_steps: Groups rows into steps.
    """

    make_algorithm: Callable[[Float[np.ndarray, " k"], Float[np.ndarray, " k"], int], GroupingAlgorithm]
    form_steps: FormSteps


GROUPING_POLICIES: dict[str, GroupingPolicy] = {
    "first_fit": GroupingPolicy(lambda limits, thresholds, rows: FirstFit(), consecutive_steps),
    "isf": GroupingPolicy(
        lambda limits, thresholds, rows: IterativeSamplingAndFiltering(threshold=tuple(thresholds.tolist())),
        balanced_steps,
    ),
    "random": GroupingPolicy(lambda limits, thresholds, rows: RandomGroups(samples=int(limits[-1])), consecutive_steps),
    "sorted": GroupingPolicy(
        lambda limits, thresholds, rows: SortedGroups(samples=int(limits[-1]), modality=0), consecutive_steps
    ),
    "device_group": GroupingPolicy(
        lambda limits, thresholds, rows: DeviceBalancedGroups(samples=int(limits[-1]), modality=0, devices=rows),
        consecutive_steps,
    ),
    "post_balanced": GroupingPolicy(lambda limits, thresholds, rows: PostBalancedGroups(rows=rows), consecutive_steps),
}
"""First-fit packing, OmniBal's ISF, OmniBal's baselines (arXiv 2407.20761, section 5.1), and OrchMLLM's post-balancing
of the backbone (arXiv 2503.23830, section 5.1)."""


def row_limits(capacity: RowCapacity) -> Float[np.ndarray, " k"]:
    """The capacities of a row that are not zero, tokens first, and the number of samples last."""
    limits = np.array([*capacity.vector, capacity.samples], float)
    return limits[limits > 0]


def limited_quantities(capacity: RowCapacity) -> tuple[str, ...]:
    """Names of the quantities of `row_limits`, without `samples`."""
    return tuple(name for name, size in capacity.units.items() if size)


def isf_thresholds(
    quantities: Sequence[str], limits: Float[np.ndarray, " k"], thresholds: Mapping[str, int | float]
) -> Float[np.ndarray, " k"]:
    """Q' of ISF for each limit of a row; infinite for the number of samples, which is no measure of work.

    Args:
        quantities: Names of the quantities that have a limit.
        limits: Their limits, and that of the number of samples (`row_limits`).
        thresholds: Q' by quantity, of some of them or of others (`DataConfig.isf_thresholds`).
    """
    shares = (ISF_THRESHOLD * limits[:-1]).tolist()
    chosen = [thresholds.get(name, share) for name, share in zip(quantities, shares, strict=True)]
    return np.array([*chosen, np.inf])
