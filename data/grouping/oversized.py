"""Samples that exceed the capacity of a group: found, and divided into pieces that do not."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

from data.errors import DataError


def exceeding(sizes: Float[np.ndarray, "n k"], capacity: Float[np.ndarray, " _"]) -> Bool[np.ndarray, " n"]:
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


@dataclasses.dataclass(frozen=True, eq=False)
class Pieces:
    """Samples of which the oversized are divided; a policy then groups pieces as it groups samples.

    Attributes:
        sizes: float64[m, k], units of every piece.
        samples: int64[m], the sample that it is of, ascending; the pieces of a sample are in order.
        starts: float64[m, k], units of the sample that are in pieces before it.
    """

    sizes: Float[np.ndarray, "m k"]
    samples: Int[np.ndarray, " m"]
    starts: Float[np.ndarray, "m k"]


def split(sizes: Float[np.ndarray, "n k"], capacity: Float[np.ndarray, " k"]) -> Pieces:
    """Divides every sample that exceeds the capacity into as few pieces as can be, as equal as whole units allow.

    Args:
        sizes: Units of every sample, whole numbers.
        capacity: Units that a piece holds at most.

    Raises:
        DataError: As `exceeding`, and a capacity below one unit or sizes that are no whole numbers.
    """
    exceeding(sizes, capacity)
    if (sizes != np.floor(sizes)).any() or (capacity < 1).any():
        raise DataError("samples can be split only by whole units, and into pieces of at least one; give such sizes")
    counts = np.maximum(np.ceil(sizes / np.floor(capacity)).max(axis=1, initial=1), 1).astype(np.int64)
    samples = np.repeat(np.arange(len(sizes)), counts)
    piece = np.arange(len(samples)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts, ends = (sizes[samples] * number[:, None] // counts[samples, None] for number in (piece, piece + 1))
    return Pieces(ends - starts, samples, starts)
