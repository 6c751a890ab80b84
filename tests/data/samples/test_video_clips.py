import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import BadSampleError, DataError
from data.media.clips.video_sampling import VideoHeader, VideoSampling
from data.records import Media
from data.samples.encoder_format import concatenate_encoder_inputs
from data.samples.image_format import PatchFormat, first_frame, frame_inputs, image_item
from data.samples.video_clips import clip_items, plan_frames
from mmjax.weights.published.tensor_layouts import PatchConvolution
from tests.clips import clip_file, frame_number

FORMAT = PatchFormat(patch=4, merge=2, max_length=512, temporal_patch=2)


def items_of(sampling=None, patch_format=FORMAT, **clip):
    return clip_items(Media("a clip", content=clip_file(**clip)), sampling or VideoSampling(), patch_format)


def numbers_in(inputs, patch_format):
    """The number of each frame in the patches of one item, which are all of one grey level."""
    frames = inputs.values.reshape(len(inputs.values), patch_format.temporal_patch, -1)
    return [frame_number((frames[:, number] + 1) * 127.5) for number in range(patch_format.temporal_patch)]


def test_a_clip_is_items_of_a_temporal_patch_whose_sizes_are_known_from_the_header():
    items = items_of(VideoSampling(rate=3.0, max_patches=4 * 96), frames=12, rate=6)  # 2 s: 6 of 12 frames
    assert [item.length for item in items] == [96, 96, 96]  # 8 x 12 patches of 4 pixels
    assert [item.group for item in items] == [0, 1, 2]
    assert [item.times for item in items] == [(0, 2 / 6), (4 / 6, 7 / 6), (9 / 6, 11 / 6)]
    loaded = [item.load() for item in items]
    assert [numbers_in(inputs, FORMAT) for inputs in loaded] == [[0, 2], [4, 7], [9, 11]]
    assert all(inputs.values.shape == (96, 96) and inputs.item_ids.tolist() == [1] * 96 for inputs in loaded)
    assert [numbers_in(item.load(), FORMAT) for item in items] == [[0, 2], [4, 7], [9, 11]]  # again


def test_a_number_of_frames_that_fills_no_temporal_patch_repeats_the_last():
    items = items_of(VideoSampling(rate=2.5, min_frames=1), frames=12, rate=6)
    assert [item.times for item in items] == [(0, 3 / 6), (6 / 6, 8 / 6), (11 / 6,)]
    assert [numbers_in(item.load(), FORMAT) for item in items] == [[0, 3], [6, 8], [11, 11]]


def test_an_image_is_repeated_as_a_still_clip():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 16, 3), np.uint8)
    once = image_item(lambda: pixels, (8, 16), dataclasses.replace(FORMAT, temporal_patch=1)).load()
    twice = image_item(lambda: pixels, (8, 16), FORMAT).load()
    np.testing.assert_array_equal(twice.values, np.concatenate([once.values, once.values], axis=1))
    np.testing.assert_array_equal(twice.positions, once.positions)
    np.testing.assert_array_equal(twice.values, frame_inputs([pixels, pixels], FORMAT).values)
    assert twice.values.shape[1] == FORMAT.value_width


@pytest.mark.parametrize("class_token", [False, True])
def test_frames_are_shown_as_images(class_token):
    patch_format = dataclasses.replace(FORMAT, prefix_tokens=int(class_token))
    frames = np.random.default_rng(1).integers(0, 256, (3, 8, 16, 3), np.uint8)
    items = [frame_inputs(list(frames[:2]), patch_format), frame_inputs(list(frames[2:]), patch_format)]
    inputs = concatenate_encoder_inputs(items, patch_format)
    np.testing.assert_array_equal(first_frame(inputs, 1, patch_format), frames[0])
    np.testing.assert_array_equal(first_frame(inputs, 2, patch_format), frames[2])


def convolve(frames, kernel):
    """A convolution over frames, rows and columns whose stride is its window: [n, rows, columns, d]."""
    d, _, t, h, w = kernel.shape
    cut = frames.reshape(len(frames) // t, t, frames.shape[1] // h, h, frames.shape[2] // w, w, 3)
    return np.einsum("ntrhcwk,dkthw->nrcd", cut, kernel).reshape(-1, frames.shape[1] // h, frames.shape[2] // w, d)


def test_patches_are_the_windows_of_a_convolution_over_frames():
    random = np.random.default_rng(2)
    frames = random.integers(0, 256, (2, 8, 16, 3), np.uint8)
    kernel = random.normal(size=(5, 3, 2, 4, 4))
    (matrix,) = PatchConvolution((2, 4, 4)).to_parameters((kernel,), ((96, 5),))
    inputs = frame_inputs(list(frames), FORMAT)
    expected = convolve(frames / 127.5 - 1, kernel)[0]
    rows, columns = inputs.positions.T
    np.testing.assert_allclose(inputs.values @ matrix, expected[rows, columns], atol=1e-4)


headers = st.builds(
    VideoHeader,
    frames=st.integers(1, 20_000),
    rate=st.sampled_from([1.0, 5.0, 24000 / 1001, 30.0, 60.0]),
    height=st.integers(1, 3000),
    width=st.integers(1, 3000),
)
samplings = st.builds(
    VideoSampling,
    rate=st.sampled_from([0.1, 1.0, 2.0, 29.5]),
    max_frames=st.integers(5, 800),
    min_frames=st.integers(1, 5),
    max_patches=st.sampled_from([0, 64, 500, 20_000]),
    placement=st.sampled_from(["ends", "middles"]),
)
formats = st.builds(
    PatchFormat,
    patch=st.sampled_from([4, 14]),
    merge=st.integers(1, 3),
    temporal_patch=st.integers(1, 3),
    max_length=st.integers(2, 200).map(lambda cells: 36 * cells),
    prefix_tokens=st.integers(0, 5),
)


@given(header=headers, sampling=samplings, patch_format=formats)
@settings(max_examples=200, deadline=None)
def test_frames_stay_within_every_limit(header, sampling, patch_format):
    numbers, (height, width), _ = plan_frames(header, sampling, patch_format)
    assert 1 <= len(numbers) <= min(sampling.max_frames, header.frames)
    assert (np.diff(numbers) > 0).all()
    assert numbers[0] >= 0
    assert numbers[-1] < header.frames
    assert height % patch_format.cell_size == width % patch_format.cell_size == 0
    items = -(-len(numbers) // patch_format.temporal_patch)
    patches = items * (patch_format.prefix_length + height * width // patch_format.patch**2)
    assert 0 < patches <= min(sampling.max_patches or patch_format.max_length, patch_format.max_length)


def test_a_tight_budget_first_takes_resolution_and_then_frames():
    header = VideoHeader(frames=60, rate=10.0, height=64, width=64)

    def planned(budget):
        numbers, size, _ = plan_frames(header, VideoSampling(max_patches=budget), FORMAT)
        return len(numbers), size

    assert planned(0) == (12, (32, 32))  # 6 temporal patches within the 512 patches of a row
    assert planned(96) == (12, (16, 16))
    assert planned(24) == (12, (8, 8))
    assert planned(23) == (10, (8, 8))
    assert planned(4) == (2, (8, 8))
    with pytest.raises(
        DataError, match=r"a clip has 3 patches at most, and a frame has 4 at least; raise VideoSampling"
    ):
        planned(3)


def test_frames_are_placed_as_published():
    """Numbers of the video processors of Qwen3-VL (2 frames per second) and InternVL (8 frames) in transformers."""
    header = VideoHeader(frames=100, rate=25.0, height=32, width=32)
    qwen = VideoSampling(rate=2.0, min_frames=4, max_frames=768)
    assert qwen.frame_numbers(header, 1000).tolist() == [0, 14, 28, 42, 57, 71, 85, 99]
    internvl = VideoSampling(rate=2.0, min_frames=8, max_frames=8, placement="middles")
    assert internvl.frame_numbers(header, 1000).tolist() == [6, 18, 31, 43, 56, 68, 81, 93]


def test_square_frames_fill_their_side():
    items = items_of(VideoSampling(side=16, min_frames=4, max_frames=4), dataclasses.replace(FORMAT, temporal_patch=1))
    assert [item.length for item in items] == [16] * 4
    assert items[0].load().positions.max(axis=0).tolist() == [3, 3]


def test_frames_that_are_missing_make_a_bad_sample():
    content = clip_file(24, kind="matroska")
    with pytest.raises(BadSampleError, match="a clip cannot be read .*where the header announces 4.00 s"):
        clip_items(Media("a clip", content=content[: len(content) * 6 // 10]), VideoSampling(), FORMAT)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"rate": 0.0}, "VideoSampling.rate is 0.0; it must be finite and above zero"),
        ({"max_frames": 0}, "max_frames is 0; it must be at least 1"),
        ({"min_frames": 9, "max_frames": 8}, "min_frames = 9 is above VideoSampling.max_frames = 8; raise max_frames"),
        ({"placement": "random"}, "placement is 'random'; choose one of ends, middles"),
        ({"side": -1}, "side is -1; it must be at least 0"),
    ],
)
def test_unusable_samplings_are_refused(settings, reason):
    with pytest.raises(DataError, match=reason):
        VideoSampling(**settings)
