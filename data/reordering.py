"""Reordering the rows of a global batch: equal work for every instance, and few bubbles between microbatches.

DistTrain's two algorithms (arXiv 2408.04275, section 6) as they are meant. Rows move, none is dropped or repeated.
"""

import itertools

import numpy as np
from jaxtyping import Float, Int


def balance(sizes: Float[np.ndarray, " n"], groups: int) -> Int[np.ndarray, "g each"]:
    """Groups of equally many rows whose sums are as equal as can easily be; each lists its rows largest first.

    Algorithm 2, in descending order, which its bound needs (Graham 1969), with the group sizes that it leaves open: the
    largest row left goes to the lightest group with room. Then rows of the heaviest group change places with lighter
    ones of others for as long as that makes the heaviest lighter.
    """
    if groups < 1 or len(sizes) % groups:
        raise ValueError(f"{len(sizes)} rows cannot be divided into {groups} groups of equal size")
    each = len(sizes) // groups
    members: list[list[int]] = [[] for _ in range(groups)]
    sums = np.zeros(groups)
    for row in np.argsort(-sizes, kind="stable"):
        open_sums = [total if len(held) < each else np.inf for total, held in zip(sums, members, strict=True)]
        lightest = int(np.argmin(open_sums))
        members[lightest].append(int(row))
        sums[lightest] += sizes[row]
    found = np.array(members)
    while _refine(found, sizes):
        pass
    order = np.argsort(-sizes[found], axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)


def _refine(groups: Int[np.ndarray, "g each"], sizes: Float[np.ndarray, " n"]) -> bool:
    """Makes the best exchange between the heaviest group and another, in place; False if none helps."""
    sums = sizes[groups].sum(axis=1)
    heaviest = int(sums.argmax())
    moved = sizes[groups[heaviest]][:, None, None] - sizes[groups]  # from the heaviest to each other group's place
    after = np.maximum(sums[heaviest] - moved, sums[:, None] + moved)
    after[:, heaviest] = np.inf
    mine, other, place = np.unravel_index(after.argmin(), after.shape)
    if after[mine, other, place] >= sums[heaviest] * (1 - 1e-12):
        return False
    here, there = groups[heaviest, mine], groups[other, place]
    groups[heaviest, mine], groups[other, place] = there, here
    return True


def microbatch_order(
    forwards: Float[np.ndarray, " l"], intervals: Float[np.ndarray, " l"], stages: int
) -> Int[np.ndarray, " l"]:
    """An order of microbatches that fills the first stage's intervals in 1F1B.

    Algorithm 3: the smallest microbatch comes first, so that all stages start soon, and the next smallest `stages - 1`
    come last, where nothing fills the intervals. The first interval is filled by the `stages - 1` microbatches behind
    the first whose forwards together come closest to it, each further one by the one that comes closest. The paper's
    loop asks for more microbatches than there are; here it ends when none is left, and where there are fewer than
    `2 * stages - 1`, so that less than `stages - 1` are left for the first interval, it takes those.

    Args:
        forwards: Seconds of each microbatch's forward on the first stage.
        intervals: Seconds between the first stage's forward of a microbatch and its backward, in which it is free: the
            forward and backward of the slowest stage behind.
        stages: Stages of the pipeline.
    """
    order = list(map(int, np.argsort(forwards, kind="stable")))
    first, rest = order[:1], order[1:]
    last, middle = rest[: stages - 1][::-1], rest[stages - 1 :]
    placed = first
    width = min(stages - 1, len(middle))
    while middle:
        filled = min(max(len(placed) - stages + 1, 0), len(placed) - 1)
        chosen = _closest(middle, forwards, max(width, 1), float(intervals[placed[filled]]))
        placed, middle, width = placed + chosen, [each for each in middle if each not in chosen], 1
    return np.array(placed + last, int)


def _closest(ascending: list[int], forwards: Float[np.ndarray, " l"], count: int, target: float) -> list[int]:
    """So many neighbours in size whose sum comes closest to a target."""
    sums = list(itertools.accumulate((float(forwards[each]) for each in ascending), initial=0.0))
    windows = range(len(ascending) - count + 1)
    start = min(windows, key=lambda start: abs(sums[start + count] - sums[start] - target))
    return ascending[start : start + count]


def reorder(
    sizes: Float[np.ndarray, " n"],
    forwards: Float[np.ndarray, " n"],
    intervals: Float[np.ndarray, " n"],
    microbatches: int,
    instances: int,
    stages: int,
) -> Int[np.ndarray, " n"]:
    """The rows of a global batch in the order in which a step takes them: microbatch by microbatch, then by instance.

    What an instance takes of a microbatch is balanced over both, then the instances are; what is left of differences
    between microbatches is alike on all instances, and they are ordered as above.

    Args:
        sizes: Work of each row.
        forwards, intervals: See `microbatch_order`, of each row.
        microbatches: Of the step.
        instances: Of the module whose work differs most, an encoder's or a generator's.
        stages: Stages of the pipeline.
    """
    cells = balance(sizes, microbatches * instances)
    by_instance = balance(sizes[cells].sum(axis=1), instances)
    alike = cells[by_instance.T]  # [microbatches, instances, rows]: the i-th largest cell of every instance
    order = microbatch_order(forwards[alike].mean(axis=(1, 2)), intervals[alike].mean(axis=(1, 2)), stages)
    return alike[order].ravel()
