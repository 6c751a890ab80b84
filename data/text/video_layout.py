"""Layout of a video clip's tokens: the texts and delimiters around and between the tokens of its frames.

`Conversations.video` configures it; `MediaParts` follows it.
"""

import dataclasses
from typing import Literal, get_args

from configs.common.checks import require_types
from data.errors import DataError
from data.media.clips.video_sampling import VideoSampling

VideoDelimiters = Literal["frames", "clip"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VideoLayout:
    r"""The frames of a clip that the vision encoder reads, and the texts and delimiters around their tokens.

    Frames of one temporal patch become backbone tokens together. The defaults put the tokens of a clip one after
    another, as in Qwen2.5-VL. Qwen3-VL has the label `<{seconds:.1f} seconds>` and delimiters around `frames`, InternVL
    the label `Frame{number}: `, the separator `\n` and delimiters around `frames`.

    Attributes:
        sampling: Which frames are read.
        label: Text before the tokens of every temporal patch, in which {number} is its number from 1 and {seconds} the
            mean of the times of its first and last frame.
        separator: Text between temporal patches.
        delimiters: Whether the tokenizer's delimiters of images, where it has them, stand around the tokens of `frames`
            in one temporal patch, or around the tokens of the whole `clip`.
    """

    sampling: VideoSampling = VideoSampling()
    label: str = ""
    separator: str = ""
    delimiters: str = "clip"

    def __post_init__(self) -> None:
        require_types(self)
        if self.delimiters not in get_args(VideoDelimiters):
            choices = ", ".join(get_args(VideoDelimiters))
            raise DataError(f"VideoLayout.delimiters is {self.delimiters!r}; choose one of {choices}")
        if self.delimiters == "clip" and (self.label or self.separator):
            raise DataError(
                "VideoLayout: delimiters around the whole clip leave no place for a label or a separator; set "
                "VideoLayout.delimiters to 'frames'"
            )
        try:
            self.label_text(1, 0.5)
        except (LookupError, ValueError, AttributeError) as error:
            raise DataError(
                f"VideoLayout.label is {self.label!r}; it may contain {{number}} and {{seconds:.1f}}, not {error}"
            ) from error

    def label_text(self, number: int, seconds: float) -> str:
        """The text before a temporal patch with this number and this mean time."""
        return self.label.format(number=number, seconds=seconds)
