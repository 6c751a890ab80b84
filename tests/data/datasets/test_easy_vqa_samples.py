import numpy as np
import pytest

from data.datasets.easy_vqa_samples import description_sample, text_sample, vqa_sample
from data.errors import BadSampleError
from data.media.patches import patchify, resize_to_square
from data.samples.media_items import image_item
from data.samples.sample import SampleSizes
from data.samples.sample_format import PatchFormat, SampleFormat, TargetImageFormat
from data.samples.token_layout import TOKEN_COLUMNS
from data.text.word_tokenizer import ANSWER, BOS, EOS, GENERATE, IMAGE, WordTokenizer

TOKENIZER = WordTokenizer(("?", "blue", "circle", "is", "it", "what", "yes"))
MARK, BLUE, CIRCLE, IS, IT, WHAT, YES = range(7, 14)
FORM = SampleFormat(PatchFormat("vision", 2, 2, 16), None, TargetImageFormat("generator", 4, 3))
PICTURE = np.random.default_rng(0).integers(0, 256, (4, 8, 3), np.uint8)


def shown(pixels):
    return image_item(lambda: pixels, pixels.shape[:2], FORM)


def columns(layout):
    names = ("tokens", "branches", "positions")
    first = [getattr(layout, name).tolist() for name in names]
    return [*first, layout.encoder_indices["patches"].tolist(), layout.targets.tolist(), layout.target_mask.tolist()]


def test_questions_hang_behind_one_image():
    outline = vqa_sample(shown(PICTURE), [("is it blue?", "yes"), ("what", "blue circle")], TOKENIZER, FORM)
    sample = outline.load(5)
    assert columns(sample.layout) == [
        [BOS, IMAGE, IMAGE, IS, IT, BLUE, MARK, ANSWER, YES, EOS, WHAT, ANSWER, BLUE, CIRCLE, EOS],
        [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 4, 5, 6, 7],
        [-1, 0, 1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1],
        [IMAGE, IMAGE, 0, IT, BLUE, MARK, ANSWER, YES, EOS, 0, ANSWER, BLUE, CIRCLE, EOS, 0],
        [0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0],
    ]
    assert all(getattr(sample.layout, name).dtype == np.int32 for name in TOKEN_COLUMNS)
    patches, positions = patchify(PICTURE, 2, 2)
    np.testing.assert_array_equal(sample.encoder_inputs["patches"].values, patches)
    np.testing.assert_array_equal(sample.encoder_inputs["patches"].positions, positions)
    assert sample.encoder_inputs["patches"].item_ids.tolist() == [1] * 8
    assert (sample.id, sample.kind, sample.target_images.shape, sample.condition_positions.shape) == (
        5,
        "vqa",
        (0, 4, 4, 3),
        (0, 3),
    )
    assert sample.sizes == {"tokens": 15, "patches": 8, "frames": 0, "images": 0}
    assert outline.sizes == SampleSizes(tokens=15, patches=8, targets=5, patch_squares=64)


def test_a_question_without_an_image():
    sample = text_sample("what is it?", "circle", TOKENIZER, FORM).load(6)
    assert columns(sample.layout) == [
        [BOS, WHAT, IS, IT, MARK, ANSWER, CIRCLE, EOS],
        [0] * 8,
        [0, 1, 2, 3, 4, 5, 6, 7],
        [-1] * 8,
        [WHAT, IS, IT, MARK, ANSWER, CIRCLE, EOS, 0],
        [0, 0, 0, 0, 0, 1, 1, 0],
    ]
    assert [array.shape for array in sample.encoder_inputs["patches"]] == [(0, 12), (0,), (0, 2)]


def test_a_description_conditions_the_image_it_describes():
    sample = description_sample("blue circle", lambda: resize_to_square(PICTURE, 4), TOKENIZER, FORM).load(7)
    assert columns(sample.layout) == [
        [BOS, BLUE, CIRCLE, GENERATE, GENERATE, GENERATE],
        [0] * 6,
        [0, 1, 2, 3, 4, 5],
        [-1] * 6,
        [BLUE, CIRCLE, GENERATE, GENERATE, GENERATE, 0],
        [1, 1, 0, 0, 0, 0],
    ]
    assert sample.condition_positions.tolist() == [[3, 4, 5]]
    np.testing.assert_array_equal(sample.target_images, resize_to_square(PICTURE, 4)[None])
    assert (sample.condition_positions.dtype, sample.target_images.dtype) == (np.int32, np.float32)


def test_a_large_image_is_shrunk_to_the_cap():
    outline = vqa_sample(shown(np.zeros((64, 64, 3), np.uint8)), [("what", "yes")], TOKENIZER, FORM)
    assert outline.sizes.patches == len(outline.load(0).encoder_inputs["patches"].values) == FORM.patches.max_length


def test_an_image_that_is_not_what_its_header_said_is_named():
    liar = image_item(lambda: PICTURE, (4, 4), FORM, "liar.png")
    with pytest.raises(BadSampleError, match=r"liar.png cannot be read \(8 patches where its header promised 4\)"):
        vqa_sample(liar, [("what", "yes")], TOKENIZER, FORM).load(0)
