"""Clips of moving shapes: what is drawn, what is written, and the data set that reads it."""

import numpy as np
import pytest

from data.datasets.dataset import Dataset, SampleIndex
from data.datasets.moving_shapes import DIRECTIONS, FRAMES, draw_clip, moving_shapes, write_moving_shapes
from data.errors import DataError
from data.media.clips.video import read_frames, read_header
from data.records import Media
from data.samples.image_format import PatchFormat
from data.samples.sample_format import SampleFormat

FORMAT = SampleFormat((PatchFormat(patch=8, merge=2, max_length=128, temporal_patch=2),), None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("shapes")
    files = list(write_moving_shapes(root, {"train": 8, "test": 4}))
    assert len(files) == 14 and all(file.is_file() for file in files)
    return root


def frames_of(path):
    media = Media.from_file(path)
    header = read_header(media)
    return np.stack(list(read_frames(media, header, [(n + 0.5) / header.rate for n in range(header.frames)])))


def test_shapes_move_the_way_that_is_asked_for_and_come_back_on_the_other_side():
    drawn = [draw_clip("train", number) for number in range(40)]
    assert {shape.direction for shape in drawn} == set(DIRECTIONS)
    for shape in drawn:
        assert len(shape.frames) in FRAMES
        changes = {
            way: min(_pixels_changed(shape.frames, step * rows, step * columns) for step in (2, 3))
            for way, (columns, rows) in DIRECTIONS.items()
        }
        assert min(changes, key=changes.__getitem__) == shape.direction


def _pixels_changed(frames, rows, columns):
    """The share of pixels that differ if each frame is moved onto the next, and around the edges."""
    return (np.roll(frames[:-1], (rows, columns), axis=(1, 2)) != frames[1:]).mean()


def test_splits_differ_and_are_always_the_same():
    np.testing.assert_array_equal(draw_clip("test", 3).frames, draw_clip("test", 3).frames)
    assert draw_clip("test", 3).frames.tobytes() != draw_clip("train", 3).frames.tobytes()


def test_files_hold_what_was_drawn(folder):
    for number in range(4):
        drawn = draw_clip("test", number).frames
        read = frames_of(folder / "clips" / "test" / f"{number:06}.mp4")
        assert read.shape == drawn.shape
        assert np.abs(read.astype(int) - drawn).mean() < 12  # colours have half the resolution in a file


def test_a_sample_is_the_clip_and_the_answer(folder):
    data = moving_shapes("test", str(folder))
    assert isinstance(data, Dataset)
    for number in range(4):
        sample = SampleIndex(data, FORMAT).load(number)
        shape = draw_clip("test", number)
        assert sample.sizes["patches"] == 16 * -(-len(shape.frames) // 2)
        answer = data.tokenizer.decode(sample.layout.targets[sample.layout.target_mask > 0])
        assert answer == shape.direction


def test_a_missing_folder_is_refused_with_the_command_that_writes_it(tmp_path):
    with pytest.raises(DataError, match="python -m mmjax.draw_clips --folder="):
        moving_shapes("train", str(tmp_path))
