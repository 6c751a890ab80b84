"""Layout of an image's tokens: the texts and tokens around and between the cells of its encoder images.

`Conversations.images` configures it; `MediaParts` and `data.samples.image_tokens` follow it.
"""

import dataclasses
from typing import Literal, get_args

from configs.common.checks import require_types
from data.errors import DataError
from data.text.tokenizer import Tokenizer

ImageDelimiters = Literal["image", "tiles"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageLayout:
    r"""The tokens of an input image, of which a tiling makes one encoder image or several.

    The defaults put the cells of all encoder images one after another, in raster order, between the tokenizer's
    delimiters of images where it has them (LLaVA-1.5, Qwen-VL, InternVL).

    Attributes:
        delimiters: Whether one pair of delimiters stands around the tokens of the whole `image`, or one around the
            tokens of each encoder image (`tiles`).
        before, after: Texts before and after each pair (Gemma 3: two line breaks each).
        original, crops, separator: Texts before the first of several encoder images, between it and the second, and
            between the others (Gemma 3 with pan and scan); for the delimiters `tiles`.
        row_break: Token between the rows of cells of an encoder image (Pixtral: `[IMG_BREAK]`).
        tile_break, tile_row_end: Tokens between neighbouring tiles of a grid, and behind each row of tiles (Llama 4).
        whole: Token before an encoder image of the whole input (Llama 4).
        joined: Whether the cells of a grid of tiles are laid out as one map without its padding, of which each row is
            followed by the backbone's newline vector (LLaVA-NeXT, LLaVA-OneVision).
    """

    delimiters: str = "image"
    before: str = ""
    after: str = ""
    original: str = ""
    crops: str = ""
    separator: str = ""
    row_break: str = ""
    tile_break: str = ""
    tile_row_end: str = ""
    whole: str = ""
    joined: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        if self.delimiters not in get_args(ImageDelimiters):
            choices = ", ".join(get_args(ImageDelimiters))
            raise DataError(f"ImageLayout.delimiters is {self.delimiters!r}; choose one of {choices}")
        if self.delimiters == "image" and (self.original or self.crops or self.separator):
            raise DataError(
                "ImageLayout: delimiters around the whole image leave no place for texts between its parts; set "
                "ImageLayout.delimiters to 'tiles'"
            )
        if self.joined and (self.delimiters == "tiles" or self.row_break or self.tile_break or self.tile_row_end):
            raise DataError(
                "ImageLayout.joined leaves no place between tiles; set delimiters to 'image', and row_break, "
                "tile_break and tile_row_end to ''"
            )

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raises DataError if the tokenizer lacks a token that the layout names."""
        self.token_ids(tokenizer)

    def token_ids(self, tokenizer: Tokenizer) -> "SeparatorIds":
        """The ids of the tokens between cells and tiles."""
        names = (self.row_break, self.tile_break, self.tile_row_end, self.whole)
        return SeparatorIds(*([tokenizer.control_token_id(name)] if name else [] for name in names))


@dataclasses.dataclass(frozen=True)
class SeparatorIds:
    """Ids of the tokens of an `ImageLayout` by the names of its fields; empty for none."""

    row_break: list[int]
    tile_break: list[int]
    tile_row_end: list[int]
    whole: list[int]
