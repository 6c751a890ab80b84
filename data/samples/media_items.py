"""Media items: the encoder inputs of images and audio clips, sized from headers and decoded on loading."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from data.media.mel import frame_count, log_mel
from data.media.patches import patchify
from data.media.tiling import ImageTiling, NativeResolution
from data.samples.sample import EncoderInputs
from data.samples.sample_format import FrameFormat, PatchFormat, SampleFormat
from data.samples.sample_metadata import MediaItem

_Decoded = TypeVar("_Decoded")


def image_item(
    pixels: Callable[[], np.ndarray], size: tuple[int, int], sample_format: SampleFormat, where: str = "image"
) -> MediaItem:
    """One image at its own resolution, scaled down if it does not fit a row.

    The arguments are those of `image_items`; the sample format has a vision encoder.
    """
    assert sample_format.patches is not None
    (item,) = image_items(pixels, size, sample_format.patches, where)
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
        size: Its (height, width), from the header.
        patch_format: What the encoder requires.
        where: Name in messages.
        tiling: How the input becomes encoder images; None for one at its own resolution, as large as a row allows.
    """
    tiling = tiling or NativeResolution(patch_format.token_count(patch_format.max_length))
    sizes = tiling.image_sizes(*size, patch_format.cell_size)
    images = _DecodedOnce(lambda: tiling.cut_images(pixels(), patch_format.cell_size), len(sizes))

    def loader(number: int) -> Callable[[], EncoderInputs]:
        def load() -> EncoderInputs:
            values, positions = patchify(images()[number], patch_format.patch, patch_format.merge)
            return prepend_class_token(EncoderInputs(values, np.ones(len(values), np.int32), positions), patch_format)

        return load

    lengths = [patch_format.prefix_length + height * width // patch_format.patch**2 for height, width in sizes]
    return [MediaItem("patches", length, loader(number), where) for number, length in enumerate(lengths)]


def prepend_class_token(image: EncoderInputs, patch_format: PatchFormat) -> EncoderInputs:
    """An image's patches preceded by the cell of its class token; unchanged for an encoder without one.

    The class token's patch is zero, its position (-1, -1); the rest of the cell belongs to no image.
    """
    if not patch_format.class_token:
        return image
    values, item_ids, positions = (
        np.zeros((patch_format.prefix_length, *column.shape[1:]), column.dtype) for column in image
    )
    item_ids[0], positions[0] = 1, -1
    return EncoderInputs(*map(np.concatenate, zip((values, item_ids, positions), image, strict=True)))


def audio_items(
    waveform: Callable[[], np.ndarray], chunks: Sequence[range], frame_format: FrameFormat, where: str = "clip"
) -> list[MediaItem]:
    """The encoder inputs of one audio clip.

    Args:
        waveform: Decodes the clip: float32[samples] at `data.media.mel.SAMPLE_RATE`.
        chunks: Range of samples of each chunk (`data.media.mel.split_into_chunks`).
        frame_format: What the encoder requires.
        where: Name in messages.
    """
    decoded = _DecodedOnce(waveform, len(chunks))
    multiple = frame_format.values_per_token

    def loader(chunk: range) -> Callable[[], EncoderInputs]:
        def load() -> EncoderInputs:
            values = log_mel(decoded()[chunk.start : chunk.stop], frame_format.mels, multiple)
            positions = np.arange(len(values) // frame_format.values_per_position, dtype=np.int32)
            return EncoderInputs(values, np.ones(len(positions), np.int32), positions)

        return load

    return [MediaItem("frames", frame_count(len(chunk), multiple), loader(chunk), where) for chunk in chunks]


class _DecodedOnce(Generic[_Decoded]):
    """Decodes on the first call and releases the result after a given number of calls."""

    def __init__(self, load: Callable[[], _Decoded], calls: int) -> None:
        self._load, self._calls = load, calls
        self._loaded: _Decoded | None = None
        self._calls_left = calls

    def __call__(self) -> _Decoded:
        if self._loaded is None:
            self._loaded, self._calls_left = self._load(), self._calls
        loaded = self._loaded
        self._calls_left -= 1
        if not self._calls_left:
            self._loaded = None
        return loaded
