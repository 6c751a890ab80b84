"""Tokens of an input image: which encoder output each placeholder takes, and the separators between them.

`SampleDraft` lays out the images of a conversation with these functions.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int64

from configs.modules.backbone import NEWLINE
from data.media.tilings.tiling import Tile
from data.samples.encoder_format import MediaItem
from data.text.image_layout import SeparatorIds

Placed = tuple[int, int | None]
"""A token id, and the encoder output that takes its place: None for none, `NEWLINE` for the newline vector."""


def sequence_tokens(
    items: Sequence[MediaItem], starts: Sequence[int], counts: Sequence[int], placeholder: int, separators: SeparatorIds
) -> Iterator[Placed]:
    """The encoder images one after another, cells in raster order.

    Args:
        items: The encoder images.
        starts: Number of the first output of each encoder image.
        counts: Number of outputs of each encoder image.
        placeholder: Token that stands for an output.
        separators: Tokens between cells and tiles.
    """
    for number, (item, start, count) in enumerate(zip(items, starts, counts, strict=True)):
        if item.tile is None:
            yield from _plain(separators.whole)
        row_length = item.grid[1] if item.grid and separators.row_break else count
        for cell in range(count):
            if cell and cell % row_length == 0:
                yield from _plain(separators.row_break)
            yield placeholder, start + cell
        if item.tile is not None:
            following = items[number + 1].tile if number + 1 < len(items) else None
            same_row = following is not None and following.row == item.tile.row
            yield from _plain(separators.tile_break if same_row else separators.tile_row_end)


def joined_tokens(
    items: Sequence[MediaItem], starts: Sequence[int], counts: Sequence[int], placeholder: int
) -> Iterator[Placed]:
    """Encoder images of the whole input, then the tiles as one map whose padding is cut; arguments as above.

    The newline vector follows each row of the map, or the whole input where there is no tile.
    """
    tiles: list[tuple[Tile, Int64[np.ndarray, "rows columns"]]] = []
    for item, start, count in zip(items, starts, counts, strict=True):
        outputs = np.arange(start, start + count)
        if item.tile is None:
            yield from ((placeholder, int(output)) for output in outputs)
        else:
            kept = outputs.reshape(item.grid)[slice(*item.tile.rows), slice(*item.tile.columns)]
            tiles.append((item.tile, kept))
    if not tiles:
        yield placeholder, NEWLINE
    for number in sorted({tile.row for tile, _ in tiles}):
        for row in np.concatenate([kept for tile, kept in tiles if tile.row == number], axis=1):
            yield from ((placeholder, int(output)) for output in row)
            yield placeholder, NEWLINE


def _plain(tokens: Sequence[int]) -> Iterator[Placed]:
    return ((token, None) for token in tokens)
