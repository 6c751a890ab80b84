"""First-fit of the largest first: a sample joins the first group that has room for it in every modality."""

import numpy as np
from jaxtyping import Float, Int

from data.packing.grouping.groups import Groups


def first_fit_decreasing(
    sizes: Float[np.ndarray, "n k"], capacity: Float[np.ndarray, " k"], samples: Int[np.ndarray, " m"]
) -> Groups:
    """Packs samples, those first that take the largest share of the capacity of any modality; all groups stay open.

    Vector packing as a planner can do it that knows a whole window: on easy-VQA's sizes 0.5% above the least number of
    groups that the sums allow, where samples in random order took 8% more. Its time grows with samples times groups:
    10 ms for a thousand samples.

    Args:
        sizes: Units of every sample, by modality.
        capacity: Units that a group holds at most; no sample of `samples` may exceed it.
        samples: Samples to pack; equal ones stay in this order.
    """
    shares = (sizes[samples] / capacity).max(axis=1, initial=0.0)
    room = np.empty((len(samples), len(capacity)))
    members: list[list[int]] = []
    for sample in samples[np.argsort(-shares, kind="stable")].tolist():
        fits = (room[: len(members)] >= sizes[sample]).all(axis=1)
        place = int(fits.argmax()) if fits.any() else len(members)
        if place == len(members):
            members.append([])
            room[place] = capacity
        members[place].append(sample)
        room[place] -= sizes[sample]
    return Groups.from_lists(members)
