"""What encoders read of pictures and clips: how much of it is told by sizes alone, and it is decoded when loaded."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from data.formats import FrameFormat, PatchFormat, SampleFormat
from data.images import patchify
from data.mel import frame_count, log_mel
from data.outline import Item
from data.samples import Stream
from data.tiling import NativeResolution, Tiling

Decoded = TypeVar("Decoded")


def picture_item(
    pixels: Callable[[], np.ndarray], size: tuple[int, int], form: SampleFormat, where: str = "image"
) -> Item:
    """An image that the vision encoder reads at its own resolution, shrunk if it would not fit a row.

    Arguments as of `picture_items`; the form has a vision encoder.
    """
    assert form.patches is not None
    (item,) = picture_items(pixels, size, form.patches, where)
    return item


def picture_items(
    pixels: Callable[[], np.ndarray],
    size: tuple[int, int],
    form: PatchFormat,
    where: str = "image",
    tiling: Tiling | None = None,
) -> list[Item]:
    """The images that the vision encoder reads of a picture.

    Args:
        pixels: Decodes it: uint8[height, width, 3].
        size: Its (height, width), known beforehand.
        form: What the encoder asks.
        where: Names it in messages.
        tiling: How it becomes images; None for one image of its own resolution, as large as a row allows.
    """
    tiling = tiling or NativeResolution(form.tokens(form.most))
    sizes = tiling.sizes(*size, form.unit)
    images = _Once(lambda: tiling.cut(pixels(), form.unit), len(sizes))

    def loader(number: int) -> Callable[[], Stream]:
        def load() -> Stream:
            values, positions = patchify(images()[number], form.patch, form.merge)
            return behind_class_token(Stream(values, np.ones(len(values), np.int32), positions), form)

        return load

    lengths = [form.front + height * width // form.patch**2 for height, width in sizes]
    return [Item("patches", length, loader(number), where) for number, length in enumerate(lengths)]


def behind_class_token(image: Stream, form: PatchFormat) -> Stream:
    """An image's patches with the cell of its class token before them, as it is without one.

    The token's patch is zeros, its place (-1, -1); the rest of the cell belongs to no image.
    """
    if not form.class_token:
        return image
    values, items, positions = (np.zeros((form.front, *of.shape[1:]), of.dtype) for of in image)
    items[0], positions[0] = 1, -1
    return Stream(*map(np.concatenate, zip((values, items, positions), image, strict=True)))


def clip_items(
    sound: Callable[[], np.ndarray], parts: Sequence[range], form: FrameFormat, where: str = "clip"
) -> list[Item]:
    """What the audio encoder reads of a clip.

    Args:
        sound: Decodes it: float32[samples], at the rate of `data.mel`.
        parts: Samples of each piece (`data.audio.split_clip`).
        form: What the encoder asks.
        where: Names it in messages.
    """
    decoded = _Once(sound, len(parts))

    def loader(part: range) -> Callable[[], Stream]:
        def load() -> Stream:
            values = log_mel(decoded()[part.start : part.stop], form.mels, form.cell)
            places = len(values) // form.stride
            return Stream(values, np.ones(places, np.int32), np.arange(places, dtype=np.int32))

        return load

    return [Item("frames", frame_count(len(part), form.cell), loader(part), where) for part in parts]


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
