"""A window of samples as steps: rows by a policy, steps of rows, and the rows that wait for the next window."""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from data.packing.grouping.algorithms import GroupingAlgorithm
from data.packing.grouping.grouping_policies import FormSteps
from data.packing.grouping.groups import Groups

WELL_FILLED = 0.5  # a row of which less is used waits for the next window


@dataclasses.dataclass(frozen=True, eq=False)
class WindowSteps:
    """What became of a window's samples.

    Attributes:
        groups: The samples of every row.
        steps: int64[steps, rows], numbers of groups.
        left: Groups in no step: first those that fill none, then those that wait to be filled.
    """

    groups: Groups
    steps: Int[np.ndarray, "steps rows"]
    leftover: Int[np.ndarray, " leftover"]


def form_window_steps(
    units: Float[np.ndarray, "n k"],
    limits: Float[np.ndarray, " k"],
    group: GroupingAlgorithm,
    form: FormSteps,
    rows: int,
    random: np.random.Generator,
    waits: bool,
) -> WindowSteps:
    """The steps of a window.

    Args:
        units: Of every sample, by modality.
        limits: Units that a row holds at most.
        group: Puts samples into rows.
        form: Puts rows into steps.
        rows: Of a step.
        random: Draws what is left to chance.
        waits: Whether there is another window, for which rows that are not well filled wait.
    """
    groups = group(units, limits, random)
    fill = (groups.sums(units) / limits).max(axis=1)
    # Where the window ends, rows stay open. They wait for the next one, and never more than a step of them.
    waiting = np.argsort(fill, kind="stable")[: rows if waits else 0]
    waiting = np.sort(waiting[fill[waiting] < WELL_FILLED])
    chosen = np.setdiff1d(np.arange(len(groups)), waiting)
    steps, left = form(groups.take(chosen), units, rows, random)
    return WindowSteps(groups, chosen[steps], np.concatenate([chosen[left], waiting]))
