"""A sample under construction: the tokens, the items and the target images of a conversation, element by element.

`data.datasets.conversations.SampleBuilder` adds the elements and makes the sample's metadata.
"""

from collections.abc import Callable
from typing import Literal, NoReturn

import numpy as np

from data.datasets.media_parts import MediaParts
from data.errors import BadSampleError
from data.media.images import image_size, read_image
from data.media.patches import resize_to_square
from data.records import FramesPart, Media, MediaPart, TilesPart
from data.samples.encoder_format import MediaItem
from data.samples.image_format import PatchFormat
from data.samples.image_tokens import joined_tokens, sequence_tokens
from data.samples.sample_format import SampleFormat, TargetImageFormat
from data.samples.sample_metadata import TargetImage
from data.text.rendering import ChatElement, TokenRun
from data.text.tokenizer import Tokenizer


class SampleDraft:
    """A sample under construction, element by element."""

    def __init__(self, sample_format: SampleFormat, tokenizer: Tokenizer, media: MediaParts) -> None:
        """Begins an empty sample.

        Args:
            sample_format: Formats that the model requires.
            tokenizer: Has the special tokens.
            media: The media of the record, as far as the template has expanded them.
        """
        self._format, self._media, self._key = sample_format, media, media.key
        self._special_tokens = tokenizer.special_tokens
        self._separators = media.images.token_ids(tokenizer)
        self._output_counts = dict.fromkeys(self._format.encoder_formats, 0)
        self.tokens: list[int] = []
        self.loss_positions: list[int] = []
        self.items: list[MediaItem] = []
        self.outputs: dict[str, list[int]] = {field: [] for field in self._format.encoder_formats}
        self.target_images: list[TargetImage] = []

    def add(self, element: ChatElement) -> None:
        """Adds tokens, or the tokens and items of a medium."""
        if isinstance(element, TokenRun):
            if element.in_loss:
                self.loss_positions += range(len(self.tokens), len(self.tokens) + len(element.ids))
            self.tokens += element.ids
        elif element.generated:
            self._add_target_image(element.part.media)
        elif isinstance(element.part, FramesPart):
            self._add_frames(element.part)
        elif isinstance(element.part, TilesPart):
            self._add_tiles(element.part)
        else:
            self._add_items(element.part)

    def add_empty_target_image(self) -> None:
        """Adds the place of an image that is yet to be generated."""
        self._add_conditions(lambda target: np.zeros((target.size, target.size, 3), np.float32))

    def _add_target_image(self, media: Media) -> None:
        image_size(media)  # raises BadSampleError for an unreadable image before rows are planned
        self._add_conditions(lambda target: resize_to_square(read_image(media), target.size))

    def _add_conditions(self, load: Callable[[TargetImageFormat], np.ndarray]) -> None:
        target = self._format.target_images or self._refuse(
            "the assistant's answer contains an image, and the model has no generator"
        )
        first = len(self.tokens)
        self.tokens += [self._special_tokens.require("generate")] * target.conditions
        positions = np.arange(first, len(self.tokens), dtype=np.int32)
        self.target_images.append(TargetImage(positions, lambda: load(target)))

    def _add_items(self, part: MediaPart) -> None:
        """Adds the placeholders of each item of a file between the tokenizer's delimiters, where it has them."""
        encoder = self._format.encoder_formats.get(part.field) or self._refuse(
            f"it contains {part.content}, and the model has no encoder of {part.field}"
        )
        role = encoder.special_token
        for item in encoder.media_items(part.media, self._media.tiling):
            self._add_delimiter(role, "start")
            self._add_item(item, self._special_tokens.require(role))
            self._add_delimiter(role, "end")

    def _add_tiles(self, part: TilesPart) -> None:
        """Adds the placeholders of encoder images as `ImageLayout` says, between the delimiters of images."""
        items, role = self._media.image_items[part.image][part.first : part.last], PatchFormat.special_token
        starts, counts = zip(*map(self._add_outputs, items), strict=True)
        placeholder = self._special_tokens.require(role)
        if self._media.images.joined:
            placed = joined_tokens(items, starts, counts, placeholder)
        else:
            placed = sequence_tokens(items, starts, counts, placeholder, self._separators)
        self._add_delimiter(role, "start")
        for token, output in placed:
            self.tokens.append(token)
            if output is not None:
                self.outputs[PatchFormat.field].append(output)
        self._add_delimiter(role, "end")

    def _add_frames(self, part: FramesPart) -> None:
        """Adds the placeholders of frames that one temporal patch covers, with the delimiters of images."""
        items, special = self._media.clip_items[part.clip], self._special_tokens
        delimits_frames, role = self._media.video.delimiters == "frames", PatchFormat.special_token
        if delimits_frames or part.group == 0:
            self._add_delimiter(role, "start")
        self._add_item(items[part.group], special.require(role) if special.video is None else special.video)
        if delimits_frames or part.group == len(items) - 1:
            self._add_delimiter(role, "end")

    def _add_item(self, item: MediaItem, placeholder: int) -> None:
        start, count = self._add_outputs(item)
        self.tokens += [placeholder] * count
        self.outputs[item.field] += range(start, start + count)

    def _add_outputs(self, item: MediaItem) -> tuple[int, int]:
        """Adds an item, and returns the first of its outputs and their number."""
        start, count = (
            self._output_counts[item.field],
            self._format.encoder_formats[item.field].token_count(item.length),
        )
        self._output_counts[item.field] += count
        self.items.append(item)
        return start, count

    def _add_delimiter(self, role: str, side: Literal["start", "end"]) -> None:
        token = getattr(self._special_tokens, f"{role}_{side}", None)
        self.tokens += [] if token is None else [token]

    def _refuse(self, reason: str) -> NoReturn:
        raise BadSampleError(self._key, reason)
