"""Expansion of a record's media: each is replaced by its items and the texts between them.

`SampleBuilder` expands a conversation by it, and `SampleDraft` then takes the items.
"""

import dataclasses
from collections.abc import Iterator

from data.errors import BadSampleError
from data.media.tilings.tiling import ImageTiling
from data.records import ContentPart, FramesPart, ImagePart, MediaPart, TextPart, TilesPart, VideoPart
from data.samples.encoder_format import MediaItem
from data.samples.image_format import PatchFormat
from data.samples.video_clips import clip_items
from data.text.image_layout import ImageLayout
from data.text.video_layout import VideoLayout


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MediaParts:
    """The images and clips of one record, in order.

    Attributes:
        key: Key of the record, for messages.
        patch_format: Format of the vision encoder's inputs; None for a model without one.
        tiling, images, video: See `data.datasets.conversations.Conversations`.
        image_items: The items of every image, as `TilesPart` counts them.
        clip_items: The items of every clip, as `FramesPart` counts them.
    """

    key: str
    patch_format: PatchFormat | None
    tiling: ImageTiling | None
    images: ImageLayout
    video: VideoLayout
    image_items: list[list[MediaItem]] = dataclasses.field(default_factory=list)
    clip_items: list[list[MediaItem]] = dataclasses.field(default_factory=list)

    def expand(self, part: MediaPart) -> Iterator[ContentPart]:
        """Replaces a medium by texts and frames or tiles; texts are encoded together with adjacent ones.

        Raises:
            BadSampleError: The medium cannot be read, or it is a clip and the model has no vision encoder.
        """
        if isinstance(part, ImagePart) and self.patch_format:
            yield from self._image(part, self.patch_format)
        elif isinstance(part, VideoPart):
            if self.patch_format is None:
                reason = f"it contains {part.content}, and the model has no encoder of {part.field}"
                raise BadSampleError(self.key, reason)
            yield from self._clip(part, self.patch_format)
        else:
            yield part

    def _image(self, part: ImagePart, patch_format: PatchFormat) -> Iterator[ContentPart]:
        layout, number = self.images, len(self.image_items)
        items = patch_format.media_items(part.media, self.tiling)
        self.image_items.append(items)
        if layout.delimiters == "image":
            yield from _between(layout, TilesPart(part.media, number, 0, len(items)))
            return
        several = len(items) > 1
        for tile in range(len(items)):
            before = (layout.original, layout.crops)[tile] if tile < 2 else layout.separator
            yield from _between(layout, TilesPart(part.media, number, tile, tile + 1), before if several else "")

    def _clip(self, part: VideoPart, patch_format: PatchFormat) -> Iterator[ContentPart]:
        items = clip_items(part.media, self.video.sampling, patch_format)
        for group, item in enumerate(items):
            seconds = (item.times[0] + item.times[-1]) / 2
            text = (self.video.separator if group else "") + self.video.label_text(group + 1, seconds)
            if text:
                yield TextPart(text)
            yield FramesPart(part.media, len(self.clip_items), group)
        self.clip_items.append(items)


def _between(layout: ImageLayout, part: TilesPart, before: str = "") -> Iterator[ContentPart]:
    """A part of a message between the layout's texts, with another text before the first of them."""
    for content in (TextPart(before + layout.before), part, TextPart(layout.after)):
        if not isinstance(content, TextPart) or content.text:
            yield content
