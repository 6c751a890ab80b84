"""Inputs of vision encoders: images of any size as flattened patches, sized from headers and decoded on loading.

Importing the file registers the format of `VisionConfig`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import UInt8

from configs.modules.encoders import VisionConfig
from data.errors import DataError
from data.media.images import image_size, read_image
from data.media.patches import patchify, unpatchify
from data.media.tilings.tiling import ImageTiling, NativeResolution, PlacedTiling
from data.records import Media
from data.samples.decoded_once import DecodedOnce
from data.samples.encoder_format import EncoderFormat, EncoderInputs, MediaItem, encoder_format


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatchFormat(EncoderFormat):
    """Inputs of a vision encoder: flattened patches, of which a cell of merge x merge becomes one backbone token.

    A class token and registers occupy whole cells before the patches of their image, so that cells stay aligned: the
    first values are the tokens', at positions (-1, -1), (-2, -2), ..., and the others belong to no image. Images of
    more than `max_length` patches are scaled down.

    Attributes:
        patch: Side of a patch in pixels.
        merge: Side of a cell in patches.
        temporal_patch: Frames of a video clip in a patch; an image is repeated that often.
        prefix_tokens: Number of tokens before the patches of every image: a class token and registers.
    """

    module: str = "vision"
    patch: int = 8
    merge: int = 2
    max_length: int = 128
    temporal_patch: int = 1
    prefix_tokens: int = dataclasses.field(default=0, metadata={"minimum": 0})

    field: ClassVar[str] = VisionConfig.field
    special_token: ClassVar[str] = "image"
    position_shape: ClassVar[tuple[int, ...]] = (2,)
    item_name: ClassVar[str] = "encoder_images"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.token_count(self.max_length):
            raise DataError(f"a row of {self.max_length} patches holds no image behind its class token; raise it")

    @property
    def values_per_token(self) -> int:
        """Patches that become one backbone token."""
        return self.merge * self.merge

    @property
    def prefix_length(self) -> int:
        """Values before the patches of an image: the patches in the cells of its class token and registers."""
        return -(-self.prefix_tokens // self.values_per_token) * self.values_per_token

    def attended_positions(self, length: int) -> int:
        """Number of positions that attend to each other in an image with `length` values, prefix included."""
        return length - self.prefix_length + self.prefix_tokens

    @property
    def value_width(self) -> int:
        """Elements of a flattened patch, of all its frames."""
        return self.temporal_patch * self.frame_width

    @property
    def frame_width(self) -> int:
        """Elements of a flattened patch of one frame."""
        return self.patch * self.patch * 3

    @property
    def cell_size(self) -> int:
        """Side of a cell in pixels."""
        return self.patch * self.merge

    def media_items(self, media: Media, tiling: ImageTiling | None = None) -> list[MediaItem]:
        """The encoder images of an image file."""
        return image_items(lambda: read_image(media), image_size(media), self, media.where, tiling)


@encoder_format.register
def _(config: VisionConfig, max_length: int) -> PatchFormat:
    if config.channels != 3:
        raise DataError(f"{config.name}.channels is {config.channels}; images are read as RGB, so it must be 3")
    return PatchFormat(
        module=config.name,
        patch=config.patch,
        merge=config.merge,
        temporal_patch=config.temporal_patch,
        max_length=max_length,
        prefix_tokens=config.prefix_tokens,
    )


def image_item(
    pixels: Callable[[], np.ndarray], size: tuple[int, int], patch_format: PatchFormat, where: str = "image"
) -> MediaItem:
    """One image at its own resolution, scaled down if it does not fit a row; the arguments are `image_items`'."""
    (item,) = image_items(pixels, size, patch_format, where)
    return item


def image_items(
    pixels: Callable[[], np.ndarray],
    size: tuple[int, int],
    patch_format: PatchFormat,
    where: str = "image",
    tiling: ImageTiling | None = None,
) -> list[MediaItem]:
    """The encoder images of one input image.

    Args:
        pixels: Decodes the input: uint8[height, width, 3].
        size: (height, width) of the input, from the header.
        patch_format: Format of the encoder's inputs.
        where: Name of the image in messages.
        tiling: How the input becomes encoder images; None for one at its own resolution, as large as a row allows.
    """
    tiling = tiling or NativeResolution(patch_format.token_count(patch_format.max_length))
    sizes = tiling.image_sizes(*size, patch_format.cell_size)
    images = DecodedOnce(lambda: tiling.cut_images(pixels(), patch_format.cell_size), len(sizes))

    def loader(number: int) -> Callable[[], EncoderInputs]:
        def load() -> EncoderInputs:
            return frame_inputs([images()[number]], patch_format)

        return load

    cell_size = patch_format.cell_size
    tiles = tiling.tiles(*size, cell_size) if isinstance(tiling, PlacedTiling) else [None] * len(sizes)
    grids = [(height // cell_size, width // cell_size) for height, width in sizes]
    return [
        MediaItem(
            patch_format.field,
            patch_format.prefix_length + rows * columns * patch_format.values_per_token,
            loader(number),
            where,
            grid=(rows, columns),
            tile=tile,
        )
        for number, ((rows, columns), tile) in enumerate(zip(grids, tiles, strict=True))
    ]


def frame_inputs(frames: Sequence[UInt8[np.ndarray, "h w 3"]], patch_format: PatchFormat) -> EncoderInputs:
    """The encoder inputs of one item: an image, or up to `temporal_patch` frames of a clip, the last one repeated.

    A patch has the pixels of its first frame, then of the next. Cells of class token and registers come first.
    """
    values, (positions, *_) = zip(
        *(patchify(frame, patch_format.patch, patch_format.merge) for frame in frames), strict=True
    )
    repeated = (values[-1],) * (patch_format.temporal_patch - len(frames))
    stacked = np.concatenate([*values, *repeated], axis=1)
    return prepend_tokens(EncoderInputs(stacked, np.ones(len(stacked), np.int32), positions), patch_format)


def first_frame(inputs: EncoderInputs, item: int, patch_format: PatchFormat) -> UInt8[np.ndarray, "h w 3"]:
    """An item of a sample as an image; of several frames the first.

    Args:
        inputs: The encoder inputs of the sample.
        item: Number of the item, from 1.
        patch_format: Format of the inputs.
    """
    mask = (inputs.item_ids == item) & (inputs.positions[:, 0] >= 0)  # without class tokens
    return unpatchify(inputs.values[mask, : patch_format.frame_width], inputs.positions[mask], patch_format.patch)


def prepend_tokens(image: EncoderInputs, patch_format: PatchFormat) -> EncoderInputs:
    """An image's patches preceded by the cells of its class token and registers; unchanged for an encoder without any.

    The patch of token i is zero, its position (-1 - i, -1 - i); the rest of the cells belongs to no image.
    """
    tokens = patch_format.prefix_tokens
    if not tokens:
        return image
    values, item_ids, positions = (
        np.zeros((patch_format.prefix_length, *column.shape[1:]), column.dtype) for column in image
    )
    item_ids[:tokens], positions[:tokens] = 1, -1 - np.arange(tokens)[:, None]
    return EncoderInputs(*map(np.concatenate, zip((values, item_ids, positions), image, strict=True)))
