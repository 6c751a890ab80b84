"""Sampling of a video clip's frames: the frames to read are chosen from its header, before anything is decoded.

`VideoLayout.sampling` configures it.
"""

import dataclasses
from typing import Literal, get_args

import numpy as np
from jaxtyping import Int64

from configs.common.checks import require_types
from data.errors import DataError

FramePlacement = Literal["ends", "middles"]


@dataclasses.dataclass(frozen=True)
class VideoHeader:
    """Number, rate and size of a clip's frames, known before it is decoded.

    Attributes:
        frames: Number of frames from the first to the end of the last one that is shown, at the average rate.
        rate: Frames per second on average.
        height: Height in pixels, upright.
        width: Width in pixels, upright.
    """

    frames: int
    rate: float
    height: int
    width: int

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return self.frames / self.rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class VideoSampling:
    """A rule for the number and places of the frames that are read of a clip; both follow from the header alone.

    Attributes:
        rate: Frames read per second of the clip; never more than it has.
        max_frames: Most frames of a clip; a longer clip is read at a lower rate.
        min_frames: Fewest frames of a clip that has as many.
        max_patches: Most patches of a clip, class tokens included: frames are scaled down, to one backbone token each,
            before their number is reduced. 0 for as many as a row holds.
        placement: `ends` spreads the frames from the first to the last one (Qwen-VL, LLaVA-Video); `middles` takes the
            middle frame of each of as many equal stretches (InternVL).
        side: Side in pixels of the square to which every frame is resized (InternVL); 0 keeps resolution and aspect
            ratio as far as `max_patches` allows.
    """

    rate: float = 2.0
    max_frames: int = 64
    min_frames: int = 4
    max_patches: int = 0
    placement: str = "ends"
    side: int = 0

    def __post_init__(self) -> None:
        require_types(self)
        if not 0 < self.rate < float("inf"):
            raise DataError(f"VideoSampling.rate is {self.rate}; it must be finite and above zero")
        for name, minimum in (("max_frames", 1), ("min_frames", 1), ("max_patches", 0), ("side", 0)):
            if getattr(self, name) < minimum:
                raise DataError(f"VideoSampling.{name} is {getattr(self, name)}; it must be at least {minimum}")
        if self.min_frames > self.max_frames:
            raise DataError(
                f"VideoSampling.min_frames = {self.min_frames} is above VideoSampling.max_frames = {self.max_frames}; "
                "raise max_frames or lower min_frames"
            )
        if self.placement not in get_args(FramePlacement):
            choices = ", ".join(get_args(FramePlacement))
            raise DataError(f"VideoSampling.placement is {self.placement!r}; choose one of {choices}")

    def frame_numbers(self, header: VideoHeader, most: int) -> Int64[np.ndarray, " n"]:
        """Numbers of the frames to read, from 0, in order and each once.

        Args:
            header: Header of the clip.
            most: Most frames that there is room for, at least 1.
        """
        wanted = max(int(header.duration * self.rate), self.min_frames)
        count = min(wanted, self.max_frames, header.frames, most)
        if self.placement == "middles":
            return (header.frames * (2 * np.arange(count, dtype=np.int64) + 1)) // (2 * count)
        return np.rint(np.linspace(0, header.frames - 1, count)).astype(np.int64)
