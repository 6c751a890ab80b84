"""Video clips of a record: each becomes its frames, and the texts between them, before the conversation is rendered."""

import dataclasses
from collections.abc import Iterator, Sequence

from data.errors import BadSampleError
from data.records import ContentPart, FramesPart, Record, TextPart, VideoPart
from data.samples.encoder_format import MediaItem
from data.samples.image_format import PatchFormat
from data.samples.video_clips import clip_items
from data.text.video_layout import VideoLayout

Clips = Sequence[Sequence[MediaItem]]
"""The items of every clip of a record, as `FramesPart` counts them."""


def expand_clips(record: Record, layout: VideoLayout, patch_format: PatchFormat | None) -> tuple[Record, Clips]:
    """A record in which the frames of its clips, and the texts between them, take the clips' places.

    The texts become part of the conversation, so a tokenizer encodes them together with what is next to them.

    Raises:
        BadSampleError: A clip cannot be read, or there is one and the model has no vision encoder.
    """
    clips: list[list[MediaItem]] = []

    def expand(part: ContentPart) -> Iterator[ContentPart]:
        if not isinstance(part, VideoPart):
            yield part
            return
        if patch_format is None:
            raise BadSampleError(
                record.key, f"it contains {part.content}, and the model has no encoder of {part.field}"
            )
        items = clip_items(part.media, layout.sampling, patch_format)
        for group, item in enumerate(items):
            seconds = (item.times[0] + item.times[-1]) / 2
            text = (layout.separator if group else "") + layout.label_text(group + 1, seconds)
            if text:
                yield TextPart(text)
            yield FramesPart(part.media, len(clips), group)
        clips.append(items)

    turns = tuple(
        dataclasses.replace(turn, parts=tuple(expanded for part in turn.parts for expanded in expand(part)))
        for turn in record.turns
    )
    return dataclasses.replace(record, turns=turns), clips
