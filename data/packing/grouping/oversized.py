"""Samples that exceed the capacity of a group."""

import numpy as np
from jaxtyping import Bool, Float

from data.errors import DataError


def exceeds_capacity(sizes: Float[np.ndarray, "n k"], capacity: Float[np.ndarray, " _"]) -> Bool[np.ndarray, " n"]:
    """Whether a sample has more units of any modality than a group holds.

    Raises:
        DataError: Sizes that are no sizes, or a capacity that is none or of other modalities.
    """
    if sizes.shape[1] != len(capacity) or not len(capacity):
        raise DataError(f"sizes of {sizes.shape[1]} modalities, capacities of {len(capacity)}; give one for each")
    if not (capacity > 0).all():
        raise DataError(f"capacity {capacity.tolist()}; it must be above 0 in every modality")
    too_large = np.zeros(len(sizes), bool)
    for modality, units in enumerate(sizes.T):
        if len(units) and not (units.min() >= 0 and units.max() < np.inf):  # false for NaN too
            first = int((~((units >= 0) & np.isfinite(units))).argmax())
            raise DataError(f"sample {first} has {units[first]} units of modality {modality}; give finite sizes from 0")
        too_large |= units > capacity[modality]
    return too_large
