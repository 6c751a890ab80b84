"""How uneven groups are: the two ratios of OmniBal (arXiv 2407.20761, equations 1 and 2), for every modality."""

import numpy as np
from jaxtyping import Float, Int

from data.packing.grouping.groups import Groups


def pad_ratio(groups: Groups, sizes: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "g k"]:
    """The share of padding in each group if all its samples are padded to its largest.

    Equation 1: sum over the B samples i of (nt_max - nt_i) / (nt_max B). Where no sample has a unit, it is 0.
    """
    padded = groups.largest(sizes) * groups.lengths[:, None]
    return np.divide(padded - groups.sums(sizes), padded, out=np.zeros_like(padded), where=padded > 0)


def dist_ratio(totals: Float[np.ndarray, "g k"], steps: Int[np.ndarray, "steps rows"]) -> Float[np.ndarray, "steps k"]:
    """The share of each step for which instances idle because another has more units.

    Equation 2: sum over the ND instances i of (NT_max - NT_i) / (NT_max ND). Where no instance has a unit, it is 0.

    Args:
        totals: Units of each group, `Groups.sums`, or of the padded batch.
        steps: The groups of each step, one an instance.
    """
    units = totals[steps]
    largest = units.max(axis=1, initial=0.0)
    idle = largest - units.mean(axis=1) if steps.shape[1] else largest
    return np.divide(idle, largest, out=np.zeros_like(largest), where=largest > 0)
