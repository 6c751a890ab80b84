"""What encoders read of pictures and clips: how much of it is told by sizes alone, and it is decoded when loaded."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from data.media.mel import frame_count, log_mel
from data.media.patches import patchify
from data.media.tiling import ImageTiling, NativeResolution
from data.samples.sample import EncoderInputs
from data.samples.sample_format import FrameFormat, PatchFormat, SampleFormat
from data.samples.sample_metadata import MediaItem

Decoded = TypeVar("Decoded")


def image_item(
    pixels: Callable[[], np.ndarray], size: tuple[int, int], form: SampleFormat, where: str = "image"
) -> MediaItem:
    """An image that the vision encoder reads at its own resolution, shrunk if it would not fit a row.

    Arguments as of `picture_items`; the form has a vision encoder.
    """
    assert form.patches is not None
    (item,) = image_items(pixels, size, form.patches, where)
    return item


def image_items(
    pixels: Callable[[], np.ndarray],
    size: tuple[int, int],
    form: PatchFormat,
    where: str = "image",
    tiling: ImageTiling | None = None,
) -> list[MediaItem]:
    """The images that the vision encoder reads of a picture.

    Args:
        pixels: Decodes it: uint8[height, width, 3].
        size: Its (height, width), known beforehand.
        form: What the encoder asks.
        where: Names it in messages.
        tiling: How it becomes images; None for one image of its own resolution, as large as a row allows.
    """
    tiling = tiling or NativeResolution(form.token_count(form.max_length))
    sizes = tiling.image_sizes(*size, form.cell_size)
    images = _Once(lambda: tiling.cut_images(pixels(), form.cell_size), len(sizes))

    def loader(number: int) -> Callable[[], EncoderInputs]:
        def load() -> EncoderInputs:
            values, positions = patchify(images()[number], form.patch, form.merge)
            return prepend_class_token(EncoderInputs(values, np.ones(len(values), np.int32), positions), form)

        return load

    lengths = [form.prefix_length + height * width // form.patch**2 for height, width in sizes]
    return [MediaItem("patches", length, loader(number), where) for number, length in enumerate(lengths)]


def prepend_class_token(image: EncoderInputs, form: PatchFormat) -> EncoderInputs:
    """An image's patches with the cell of its class token before them, as it is without one.

    The token's patch is zeros, its place (-1, -1); the rest of the cell belongs to no image.
    """
    if not form.class_token:
        return image
    values, items, positions = (np.zeros((form.prefix_length, *of.shape[1:]), of.dtype) for of in image)
    items[0], positions[0] = 1, -1
    return EncoderInputs(*map(np.concatenate, zip((values, items, positions), image, strict=True)))


def audio_items(
    sound: Callable[[], np.ndarray], parts: Sequence[range], form: FrameFormat, where: str = "clip"
) -> list[MediaItem]:
    """What the audio encoder reads of a clip.

    Args:
        sound: Decodes it: float32[samples], at the rate of `data.media.mel`.
        parts: Samples of each piece (`data.media.audio.split_clip`).
        form: What the encoder asks.
        where: Names it in messages.
    """
    decoded = _Once(sound, len(parts))

    def loader(part: range) -> Callable[[], EncoderInputs]:
        def load() -> EncoderInputs:
            values = log_mel(decoded()[part.start : part.stop], form.mels, form.values_per_token)
            places = len(values) // form.values_per_position
            return EncoderInputs(values, np.ones(places, np.int32), np.arange(places, dtype=np.int32))

        return load

    return [MediaItem("frames", frame_count(len(part), form.values_per_token), loader(part), where) for part in parts]


class _Once(Generic[Decoded]):
    """Decodes when first asked, and forgets after as many times as it is needed."""

    def __init__(self, load: Callable[[], Decoded], times: int) -> None:
        self._load, self._times = load, times
        self._loaded: Decoded | None = None
        self._left = times

    def __call__(self) -> Decoded:
        if self._loaded is None:
            self._loaded, self._left = self._load(), self._times
        found = self._loaded
        self._left -= 1
        if not self._left:
            self._loaded = None
        return found
