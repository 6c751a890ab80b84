"""Rotary positions in two dimensions: where a patch is, and how fast each pair of channels of a head rotates.

`VisionConfig.rope` holds it; `mmjax.models.layers.positions` computes the rotations.
"""

import dataclasses

import numpy as np

from configs.attention.rope import Frequencies, rotary_frequencies
from configs.common.checks import require_one_of, require_types
from configs.common.short_repr import short_repr

_FREQUENCIES = ("shared", "alternate")
_COORDINATES = ("index", "number", "centred")


@dataclasses.dataclass(frozen=True)
class VisionRope:
    """Rotary positions of patches: half of a head's pairs of channels rotate by row, the other half by column.

    EVA-02 (arXiv 2303.11331), Qwen2-VL (2409.12191), Pixtral (2410.07073) and DINOv3 (2508.10104) differ in these.

    Attributes:
        base: Base b of the frequencies.
        frequencies: Angles per unit of the pairs i of a head of width e: `shared`, b^(-4i/e) for rows and columns
            alike, or `alternate`, b^(-2j/e) with even j for rows and odd j for columns (Pixtral).
        coordinates: Where a patch is: `index`, its row and column from 0; `number`, both from 1, so that a class token,
            which is not rotated, is nowhere in the image (Llama 4); or `centred`, 2π times its centre in an image that
            reaches from -1 to 1 (DINOv3).
        grid: Side in patches to which the indices of every image are rescaled (EVA-02, which treats images of any size
            like the images that it was first trained on); 0 for no rescaling.
    """

    base: float = 10000.0
    frequencies: str = "shared"
    coordinates: str = "index"
    grid: int = 0

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        require_one_of(self, "frequencies", _FREQUENCIES)
        require_one_of(self, "coordinates", _COORDINATES)
        if self.base <= 0:
            raise ValueError(f"VisionRope.base is {self.base}; it must be above 0")
        if self.grid < 0:
            raise ValueError(f"VisionRope.grid is {self.grid}; it must be at least 0")
        if self.grid and self.coordinates != "index":
            raise ValueError(
                f"VisionRope.grid is {self.grid}, but only coordinates = 'index' are rescaled; set it to 0"
            )

    def axis_frequencies(self, head_width: int) -> tuple[Frequencies, Frequencies]:
        """Angles per unit of the pairs that rotate by row, then of the pairs that rotate by column; [e / 4] each."""
        if self.frequencies == "shared":
            shared = rotary_frequencies(head_width // 2, self.base)
            return shared, shared
        every = rotary_frequencies(head_width, self.base)
        return np.ascontiguousarray(every[0::2]), np.ascontiguousarray(every[1::2])
