"""Iterative sampling and filtering: groups drawn at random until most are nearly full (OmniBal, 4.1)."""

import numpy as np
from jaxtyping import Float, Int

from data.packing.grouping.groups import Groups
from data.packing.grouping.next_fit import next_fit


def sample_and_filter(
    columns: Float[np.ndarray, "k n"],
    capacity: Float[np.ndarray, " k"],
    threshold: Float[np.ndarray, " k"],
    rounds: int,
    samples: Int[np.ndarray, " m"],
    random: np.random.Generator,
) -> tuple[Groups, Int[np.ndarray, " rest"]]:
    """Algorithms 1 and 2 of arXiv 2407.20761, alternately; the groups accepted, and the samples in none of them.

    A round brings the samples left into a random order, closes a group where the next sample exceeds the capacity in
    any modality, and keeps the groups that reach the threshold in at least one. The printed sampling stage never adds
    its last group to the candidates and so loses its samples; here it is a candidate like the others.

    Args:
        columns: Units of every sample, by modality.
        capacity: Q; no sample of `samples` may exceed it.
        threshold: Q'.
        rounds: T.
        samples: Samples to group.
        random: Draws the orders.
    """
    members, lengths = [samples[:0]], [samples[:0]]
    rest = samples
    for _ in range(rounds):
        if not len(rest):
            break
        order = random.permutation(rest)
        filled = next_fit(columns, capacity, order)
        accepted = (filled.sums >= threshold[:, None]).any(axis=0)
        in_accepted = np.repeat(accepted, filled.lengths)
        members.append(order[in_accepted])
        lengths.append(filled.lengths[accepted])
        rest = order[~in_accepted]
    return Groups.from_lengths(np.concatenate(members), np.concatenate(lengths)), rest
