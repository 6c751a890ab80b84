"""Requirements of the backbone on a sample's tokens: positions along one axis or three, and bidirectional blocks.

`SampleMetadata` completes the layout of a decoded sample by it.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int32

from configs.modules.backbone import BackboneConfig, Bidirectional
from data.errors import BadSampleError
from data.samples.encoder_format import EncoderFormat, MediaItem
from data.samples.token_layout import TokenLayout

AXES = 3
"""Axes of multimodal positions: time, row, column."""


@dataclasses.dataclass(frozen=True)
class TokenFormat:
    """Requirements of the backbone on the tokens of a sample.

    Attributes:
        multimodal: Whether a position is (time, row, column) (Qwen2-VL, arXiv 2409.12191, section 2.1).
        positions_per_second: Positions along time that a second of a video clip takes; 0 for one each group of frames.
        bidirectional: Which tokens attend to each other both ways.
        newline: Whether the backbone has a newline vector.
    """

    multimodal: bool = False
    positions_per_second: float = 0.0
    bidirectional: Bidirectional = "none"
    newline: bool = False

    @classmethod
    def for_backbone(cls, backbone: BackboneConfig) -> "TokenFormat":
        """The format for a backbone."""
        return cls(
            bool(backbone.rope_sections), backbone.positions_per_second, backbone.bidirectional, backbone.newline
        )

    @property
    def position_shape(self) -> tuple[int, ...]:
        """Shape of a position."""
        return (AXES,) if self.multimodal else ()

    def complete(
        self, layout: TokenLayout, items: Sequence[MediaItem], encoder_formats: Mapping[str, EncoderFormat]
    ) -> TokenLayout:
        """The layout with the positions and blocks that the backbone reads.

        Args:
            layout: The tokens of a sample, positions numbered by token, encoder indices counting outputs of items.
            items: All items of the sample; the items of one encoder are in order.
            encoder_formats: Formats of the encoders' inputs, by field.

        Raises:
            BadSampleError: Positions are multimodal, and the tokens of a picture do not follow one another.
        """
        if not self.multimodal and self.bidirectional == "none":
            return layout
        pictures = [item for item in items if item.grid]
        numbers = _picture_numbers(layout, items, encoder_formats)
        if self.multimodal:
            positions = _multimodal_positions(layout.branches, numbers, pictures, self.positions_per_second)
            layout = dataclasses.replace(layout, positions=positions)
        if self.bidirectional == "images":
            layout = dataclasses.replace(layout, blocks=numbers + 1)
        elif self.bidirectional == "prompt":
            layout = dataclasses.replace(layout, blocks=_prompt_blocks(layout))
        return layout


def _picture_numbers(
    layout: TokenLayout, items: Sequence[MediaItem], encoder_formats: Mapping[str, EncoderFormat]
) -> Int32[np.ndarray, " t"]:
    """Number of the picture that each token shows, counted over all encoders; -1 for none."""
    numbers = np.full(len(layout.tokens), -1, np.int32)
    place = {id(item): number for number, item in enumerate(item for item in items if item.grid)}
    for field, indices in layout.encoder_indices.items():
        field_items = [item for item in items if item.field == field]
        counts = [encoder_formats[field].token_count(item.length) for item in field_items]
        output_numbers = np.repeat(np.array([place.get(id(item), -1) for item in field_items], np.int32), counts)
        shown = indices >= 0
        numbers[shown] = output_numbers[indices[shown]]
    return numbers


def _multimodal_positions(
    branches: Int32[np.ndarray, " t"],
    numbers: Int32[np.ndarray, " t"],
    pictures: Sequence[MediaItem],
    positions_per_second: float,
) -> Int32[np.ndarray, "t 3"]:
    """(time, row, column) of each token.

    A token of text takes the position after the largest one before it, along all axes alike; so does the first cell of
    a picture, whose other cells count from there. Pictures of one clip without tokens between them begin at the same
    row and column, and differ in time. A branch continues from the end of the trunk.
    """
    positions = np.empty((len(branches), AXES), np.int32)
    trunk_end = following = start = 0
    branch = previous = -1
    clip = None
    for first, last in _runs(branches, numbers):
        if branches[first] != branch:
            trunk_end = following if branch == 0 else trunk_end
            branch, previous, following = branches[first], -1, trunk_end
        number = numbers[first]
        if number < 0:
            positions[first:last] = (following + np.arange(last - first))[:, None]
        else:
            item = pictures[number]
            if clip is None or previous < 0 or number != previous + 1 or item.group == 0:
                start, clip = following, item
            time = start + _time_offset(item, clip, positions_per_second)
            rows, columns = _cells(item, last - first)
            positions[first:last] = np.stack([np.full_like(rows, time), start + rows, start + columns], axis=1)
        following, previous = max(following, int(positions[first:last].max()) + 1), number
    return positions


def _runs(branches: Int32[np.ndarray, " t"], numbers: Int32[np.ndarray, " t"]) -> Iterator[tuple[int, int]]:
    """First and last token, the last excluded, of each stretch of text or of one picture, in one branch."""
    changes = (np.diff(branches) != 0) | (np.diff(numbers) != 0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(branches)] if len(branches) else []
    return zip(bounds, bounds[1:], strict=False)


def _time_offset(item: MediaItem, clip: MediaItem, positions_per_second: float) -> int:
    """Positions along time from the first picture of a clip to another one."""
    if not positions_per_second or not item.times or item is clip:
        return item.group - clip.group
    # A thousandth more, lest rounding of seconds takes away a whole position.
    return int((item.times[0] - clip.times[0]) * positions_per_second + 1e-3)


def _cells(item: MediaItem, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each cell of a picture, in raster order."""
    assert item.grid is not None, "only pictures are numbered"
    rows, columns = item.grid
    if rows * columns != tokens:
        raise BadSampleError(
            item.where,
            f"{tokens} tokens of it follow one another, and it has {rows} x {columns} cells; multimodal positions need "
            "all of them in one run",
        )
    row_numbers, column_numbers = np.indices((rows, columns), np.int32).reshape(2, -1)
    return row_numbers, column_numbers


def _prompt_blocks(layout: TokenLayout) -> Int32[np.ndarray, " t"]:
    """Numbers of bidirectional blocks, one for the trunk and one for each branch.

    A block has the tokens before its first target; tokens from the target on have 0.
    """
    begins = np.flatnonzero(np.diff(layout.branches, prepend=-1))  # first token of the trunk and of each branch
    targets = np.append(0, np.cumsum(layout.target_mask))[:-1]  # targets predicted before each token
    segment = np.searchsorted(begins, np.arange(len(layout.tokens)), side="right") - 1
    before = targets - targets[begins][segment] == 0
    return np.where(before, layout.branches + 1, 0).astype(np.int32)
