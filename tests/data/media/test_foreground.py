import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from data.datasets.easy_vqa import EasyVQA
from data.media.foreground import MARGIN, crop_to_foreground

BACKGROUND, SUBJECT = (250, 240, 245), (20, 30, 200)


@hypothesis.given(st.data())
def test_the_window_has_the_whole_subject_with_a_margin_within_the_picture(data):
    height, width = data.draw(st.integers(8, 40)), data.draw(st.integers(8, 40))
    longest = min(height, width)
    rows, columns = data.draw(st.integers(1, longest)), data.draw(st.integers(1, longest))
    hypothesis.assume(2 * rows * columns < height * width)
    top, left = data.draw(st.integers(0, height - rows)), data.draw(st.integers(0, width - columns))
    image = np.full((height, width, 3), BACKGROUND, np.uint8)
    image[top : top + rows, left : left + columns] = SUBJECT
    window = crop_to_foreground(image)
    assert window.shape == (min(height, width, math.ceil(MARGIN * max(rows, columns))),) * 2 + (3,)
    assert (window == SUBJECT).all(axis=-1).sum() == rows * columns


def test_a_subject_in_the_middle_stays_there():
    image = np.full((20, 30, 3), BACKGROUND, np.uint8)
    image[5:15, 10:20] = SUBJECT
    (rows, columns) = np.nonzero((crop_to_foreground(image) == SUBJECT).all(axis=-1))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (2, 11, 2, 11)


def test_noise_of_the_background_is_no_subject():
    image = np.full((32, 32, 3), BACKGROUND, np.uint8)
    image[0, 0] = np.array(BACKGROUND) - 16
    image[20:24, 20:24] = SUBJECT
    assert crop_to_foreground(image).shape == (6, 6, 3)


def test_a_picture_of_one_colour_gives_its_middle():
    image = np.arange(12, dtype=np.uint8)[None, :, None] * np.ones((8, 1, 3), np.uint8)
    np.testing.assert_array_equal(crop_to_foreground(image), image[:, 2:10])


@pytest.mark.parametrize("number", range(0, 1000, 97))
def test_shapes_of_real_pictures_fill_their_windows(number):
    source = EasyVQA("test")
    window = crop_to_foreground(source.image(source.image_ids[number])).astype(int)
    differs = (np.abs(window - window[0, 0]) > 16).any(axis=-1)
    assert max(differs.any(axis=0).mean(), differs.any(axis=1).mean()) == pytest.approx(1 / MARGIN, abs=0.08)
