import numpy as np

from data.media.tilings.tiling import DynamicTiling, NativeResolution
from data.samples.audio_format import FrameFormat, audio_items
from data.samples.image_format import PatchFormat, image_item, image_items

PATCHES = PatchFormat(patch=4, merge=2, max_length=64)
PICTURE = np.arange(24 * 40 * 3, dtype=np.uint8).reshape(24, 40, 3)


class Decoder:
    """Decodes, and counts how often."""

    def __init__(self, decoded):
        self.decoded, self.times = decoded, 0

    def __call__(self):
        self.times += 1
        return self.decoded


def test_an_image_is_decoded_once_for_all_of_its_tiles():
    pixels = Decoder(PICTURE)
    items = image_items(pixels, (24, 40), PATCHES, tiling=DynamicTiling(tile_size=16, min_tiles=2, max_tiles=2))
    assert [item.length for item in items] == [16, 16, 16] and pixels.times == 0
    first = [item.load() for item in items]
    assert pixels.times == 1
    again = [item.load() for item in items]
    assert pixels.times == 2
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.values, other.values)


def test_without_a_tiling_an_input_is_one_image_as_large_as_a_row_allows():
    plain = image_item(lambda: PICTURE, (24, 40), PATCHES, "it.png")
    (ruled,) = image_items(lambda: PICTURE, (24, 40), PATCHES, "it.png", NativeResolution(64 // 4))
    assert (plain.field, plain.length, plain.where) == ("patches", 3 * 5 * 4, "it.png")
    np.testing.assert_array_equal(plain.load().values, ruled.load().values)
    assert plain.load().positions.shape == (60, 2)


def test_a_clip_is_decoded_once_for_all_of_its_chunks():
    sound = Decoder(np.sin(np.arange(6400) / 3).astype(np.float32))
    items = audio_items(sound, [range(3200), range(3200, 6400)], FrameFormat(mels=8, merge=5), "it.wav")
    streams = [item.load() for item in items]
    assert sound.times == 1
    assert [len(stream.values) for stream in streams] == [item.length for item in items] == [20, 20]
    assert streams[0].positions.tolist() == list(range(10))
