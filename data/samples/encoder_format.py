"""Encoder formats: shapes and names of an encoder's inputs, and how the items of a sample become its inputs.

A kind of encoder registers its format by the type of its configuration (`encoder_format`); data sets make items by
it.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from configs.common.short_repr import short_repr
from configs.modules.encoders import EncoderConfig, unregistered_encoder
from data.errors import BadSampleError, DataError
from data.media.tilings.tiling import ImageTiling, Tile
from data.records import Media


class EncoderInputs(NamedTuple):
    """Inputs of one encoder from a sample: its items (images, clips, ...) concatenated.

    p is the number of values; an encoder position covers `EncoderFormat.values_per_position` of them.

    Attributes:
        values: float32[p, w], such as flattened patches; every item has a multiple of `values_per_token`.
        item_ids: int32[positions], 1-based number of the item of each position; 0 for none.
        positions: int32[positions, *position_shape], such as (row, column) of a patch in its image, -1 for a class
            token; or int32[positions], the position in the item.
    """

    values: np.ndarray
    item_ids: np.ndarray
    positions: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class MediaItem:
    """One item that an encoder reads, such as an image or an audio clip.

    Attributes:
        field: Field of its encoder's inputs, such as `patches`.
        length: Number of its values.
        load: Decodes the item.
        where: Name of the item in messages.
        times: Of frames of a video clip, the seconds from its start at which they are shown; empty for other items.
        group: Number of these frames in their clip, from 0: a clip's items follow one another, and 0 begins the next.
        grid: Of an image or of frames, rows and columns of the cells that become backbone tokens; None for other items.
        tile: Place of an encoder image in its input; None for one of the whole input, and for other items.
    """

    field: str
    length: int
    load: Callable[[], EncoderInputs]
    where: str
    times: tuple[float, ...] = ()
    group: int = 0
    grid: tuple[int, int] | None = None
    tile: Tile | None = None

    __repr__ = short_repr


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderFormat:
    """Inputs of an encoder: rows of values, of which some become a position and some positions a backbone token.

    A kind of encoder has a subclass, which gives the class attributes, `value_width` and `values_per_token`.

    Attributes:
        module: Name of the encoder.
        max_length: Most values of a sample: their capacity in a row.
        field: Name of the values, as in `EncoderConfig.field`.
        special_token: The special token that stands for an output of the encoder (a field of `SpecialTokens`).
        values_per_position: Values that become one position of the encoder.
        position_shape: Shape of the index of a position within its item; () for a number.
        item_name: Name of its items in the description of a data set.
    """

    module: str
    max_length: int

    field: ClassVar[str]
    special_token: ClassVar[str] = "image"
    values_per_position: ClassVar[int] = 1
    position_shape: ClassVar[tuple[int, ...]] = ()
    item_name: ClassVar[str] = "encoder_items"

    def __post_init__(self) -> None:
        require_positive_fields(self)
        if self.max_length % self.values_per_token:
            raise DataError(
                f"a row of {self.max_length} {self.field} must be a multiple of {self.values_per_token}, the "
                f"{self.field} of a backbone token of {self.module}; change it"
            )

    @property
    def value_width(self) -> int:
        """Elements of a value, such as the channels of a flattened patch."""
        raise NotImplementedError(f"{type(self).__name__} must define the property value_width")

    @property
    def values_per_token(self) -> int:
        """Values that become one backbone token."""
        raise NotImplementedError(f"{type(self).__name__} must define the property values_per_token")

    @property
    def prefix_length(self) -> int:
        """Values that precede an item's own values and become no backbone token."""
        return 0

    def token_count(self, length: int) -> int:
        """Number of backbone tokens of an item with `length` values, prefix included."""
        return (length - self.prefix_length) // self.values_per_token

    def attended_positions(self, length: int) -> int:
        """Number of positions that attend to each other in an item with `length` values, prefix included."""
        return length // self.values_per_position

    def item(self, length: int, values: Callable[[], np.ndarray], where: str) -> MediaItem:
        """An item whose positions are numbered from 0.

        Args:
            length: Number of its values, a multiple of `values_per_token`.
            values: Decodes the item: float32[length, value_width].
            where: Name of the item in messages.

        Raises:
            BadSampleError: The item has no values, or its values do not fill backbone tokens.
        """
        if length < 1 or length % self.values_per_token:
            raise BadSampleError(
                where, f"{length} {self.field}; they must be a multiple of {self.values_per_token}, and at least that"
            )

        def load() -> EncoderInputs:
            loaded = values()
            positions = np.arange(len(loaded) // self.values_per_position, dtype=np.int32)
            return EncoderInputs(loaded, np.ones(len(positions), np.int32), positions)

        return MediaItem(self.field, length, load, where)

    def media_items(self, media: Media, tiling: ImageTiling | None = None) -> list[MediaItem]:
        """The items of a file of a record, sized from its header.

        Args:
            media: The file.
            tiling: How an image becomes several items.

        Raises:
            BadSampleError: The file cannot be read, or this kind of encoder reads no files.
        """
        raise BadSampleError(media.where, f"{type(self).__name__} reads no files; give it the method media_items")


@functools.singledispatch
def encoder_format(config: EncoderConfig, max_length: int) -> EncoderFormat:
    """The format of an encoder's inputs, from the encoder's configuration and the capacity of a row in values.

    A kind of encoder registers its own function by the type of its configuration.
    """
    raise unregistered_encoder(config)


def require_positive_fields(sample_format: Any) -> None:
    """Raises DataError, naming the field, if a whole number of a format is below 1, or the field's own `minimum`."""
    for field in dataclasses.fields(sample_format):
        value = getattr(sample_format, field.name)
        minimum = field.metadata.get("minimum", 1)
        if field.type is int and value < minimum:
            raise DataError(f"{type(sample_format).__name__}.{field.name} is {value}; it must be at least {minimum}")


def empty_encoder_inputs(encoder_format: EncoderFormat) -> EncoderInputs:
    """Encoder inputs of a sample without an item."""
    return EncoderInputs(
        np.zeros((0, encoder_format.value_width), np.float32),
        np.zeros(0, np.int32),
        np.zeros((0, *encoder_format.position_shape), np.int32),
    )


def concatenate_encoder_inputs(items: Iterable[EncoderInputs], encoder_format: EncoderFormat) -> EncoderInputs:
    """Encoder inputs of several items, numbered in their order."""
    items = list(items)
    if not items:
        return empty_encoder_inputs(encoder_format)
    item_ids = [np.where(item.item_ids > 0, np.int32(number), 0) for number, item in enumerate(items, start=1)]
    values, _, positions = zip(*items, strict=True)
    return EncoderInputs(np.concatenate(values), np.concatenate(item_ids), np.concatenate(positions))
