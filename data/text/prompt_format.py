"""The prompt format of a data set, saved with a trained model so that generation needs no data set."""

import dataclasses
import json
from typing import Any

from configs.common.short_repr import short_repr
from configs.common.strict_json import parse_json
from data.errors import DataError
from data.media.clips.video_sampling import VideoSampling
from data.media.tilings.any_resolution import AnyResolution
from data.media.tilings.canvas_tiling import CanvasTiling
from data.media.tilings.longest_edge import LongestEdge
from data.media.tilings.pan_and_scan import PanAndScan
from data.media.tilings.patch_count import PatchCount
from data.media.tilings.pixel_range import PixelRange
from data.media.tilings.square_image import SquareImage
from data.media.tilings.tiling import DynamicTiling, ImageTiling, NativeResolution
from data.text.image_layout import ImageLayout
from data.text.video_layout import VideoLayout

_TILINGS = {
    tiling.__name__: tiling
    for tiling in (
        AnyResolution,
        CanvasTiling,
        DynamicTiling,
        LongestEdge,
        NativeResolution,
        PanAndScan,
        PatchCount,
        PixelRange,
        SquareImage,
    )
}


@dataclasses.dataclass(frozen=True)
class PromptFormat:
    """The layout of a data set's prompts: chat templates, tiling of images, and layouts of images and clips.

    Attributes:
        template: Name of the chat template (`data.text.templates.find_template`) of prompts answered by text.
        generation_template: Name of the chat template of prompts answered by an image.
        tiling: How an input image becomes encoder images; None for one image at its own resolution.
        images: How the tokens of an input image are laid out.
        video: How the frames of a video clip are chosen and laid out.
    """

    template: str = "question"
    generation_template: str = "plain"
    tiling: ImageTiling | None = None
    images: ImageLayout = ImageLayout()
    video: VideoLayout = VideoLayout()

    __repr__ = short_repr

    def to_json(self) -> str:
        """Text for `from_json`."""
        tiling = self.tiling and {"kind": type(self.tiling).__name__, **dataclasses.asdict(self.tiling)}
        fields = {
            "template": self.template,
            "generation_template": self.generation_template,
            "tiling": tiling,
            "images": dataclasses.asdict(self.images),
            "video": dataclasses.asdict(self.video),
        }
        return json.dumps(fields, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "PromptFormat":
        """The format that `to_json` wrote; raises DataError for another text."""
        try:
            fields = parse_json(text, "the prompt format", DataError)
            tiling, template, generation_template, images, video = (
                fields[name] for name in ("tiling", "template", "generation_template", "images", "video")
            )
            if tiling is not None:
                kind = _TILINGS[tiling.pop("kind")]
                tiling = kind(**{name: _as_tuple(value) for name, value in tiling.items()})
            if not (isinstance(template, str) and isinstance(generation_template, str)):
                raise TypeError("a template's name is a text")
            layout = VideoLayout(**{**video, "sampling": VideoSampling(**video["sampling"])})
            return cls(template, generation_template, tiling, ImageLayout(**images), layout)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"not written by PromptFormat.to_json: {error!r}") from error


def _as_tuple(value: Any) -> Any:
    """A list of JSON, and lists within it, as the tuples that they were written from."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
