"""One square image of a fixed side, as encoders read that were trained at one resolution (CLIP, SigLIP).

`data.text.published_processor` chooses it, or a configuration does.
"""

import dataclasses
from typing import Literal, get_args

import numpy as np
from jaxtyping import UInt8

from configs.common.checks import require_types
from data.errors import DataError
from data.media.resampling import cropped, require_at_least_one, require_resampling, resized, side_of_whole_cells

Fit = Literal["stretch", "crop", "pad"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquareImage:
    """One square image.

    Attributes:
        side: Side in pixels. A remainder of less than a cell at its end is cut off, as SigLIP's convolution leaves it
            (384 pixels in patches of 14).
        fit: How another aspect ratio becomes a square: `stretch` changes it (SigLIP, PaliGemma, Gemma 3); `crop` keeps
            the middle of an image whose shorter side has been resized (CLIP, LLaVA-1.5); `pad` first adds `padding` on
            both sides of the shorter one.
        resampling: Name of the filter that resizes (`data.media.resampling`).
        padding: Red, green and blue of `pad`, 0 to 255.
    """

    side: int = 384
    fit: str = "stretch"
    resampling: str = "bicubic"
    padding: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self) -> None:
        require_types(self)
        require_resampling(self, self.resampling)
        require_at_least_one(self, "side")
        if self.fit not in get_args(Fit):
            raise DataError(f"SquareImage.fit is {self.fit!r}; choose one of {', '.join(get_args(Fit))}")
        if not all(0 <= level <= 255 for level in self.padding):
            raise DataError(f"SquareImage.padding is {self.padding}; levels are 0 to 255")

    def image_sizes(self, height: int, width: int, cell_size: int) -> list[tuple[int, int]]:
        """The size of the one image.

        Raises:
            DataError: The side is less than `cell_size`.
        """
        side = side_of_whole_cells(self, "side", self.side, cell_size)
        return [(side, side)]

    def cut_images(self, pixels: UInt8[np.ndarray, "h w 3"], cell_size: int) -> list[UInt8[np.ndarray, "_ _ 3"]]:
        """The one image."""
        height, width = pixels.shape[:2]
        ((side, _),) = self.image_sizes(height, width, cell_size)
        if self.fit == "crop":
            square = self._middle(pixels)
        else:
            fitted = self._padded(pixels) if self.fit == "pad" else pixels
            square = resized(fitted, (self.side, self.side), self.resampling)
        return [square if side == self.side else cropped(square, side)]

    def _middle(self, pixels: np.ndarray) -> np.ndarray:
        height, width = pixels.shape[:2]
        shorter = min(height, width)
        size = (int(self.side * height / shorter), int(self.side * width / shorter))
        whole = resized(pixels, size, self.resampling)
        top, left = ((side - self.side) // 2 for side in whole.shape[:2])
        return np.ascontiguousarray(whole[top : top + self.side, left : left + self.side])

    def _padded(self, pixels: np.ndarray) -> np.ndarray:
        height, width = pixels.shape[:2]
        side = max(height, width)
        square = np.empty((side, side, 3), np.uint8)
        square[:] = self.padding
        top, left = (side - height) // 2, (side - width) // 2
        square[top : top + height, left : left + width] = pixels
        return square
