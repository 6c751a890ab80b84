import numpy as np
import pytest

from configs.architectures import BackboneConfig, GeneratorConfig, ModelConfig, VisionConfig
from data.errors import DataError
from data.images import patchify, resize
from data.samples import (
    SampleFormat,
    description_prompt,
    description_sample,
    lay_out,
    question_prompt,
    text_prompt,
    text_sample,
    vqa_sample,
)
from data.tokenizer import ANSWER, BOS, EOS, GENERATE, IMAGE, WordTokenizer

TOKENIZER = WordTokenizer(("?", "blue", "circle", "is", "it", "what", "yes"))
MARK, BLUE, CIRCLE, IS, IT, WHAT, YES = range(7, 14)
FORM = SampleFormat(patch=2, merge=2, image_size=4, conditions=3, patches=16)
PICTURE = np.random.default_rng(0).integers(0, 256, (4, 8, 3), np.uint8)


def columns(layout):
    return [column.tolist() for column in layout]


def test_questions_hang_behind_one_image():
    sample = vqa_sample(5, PICTURE, [("is it blue?", "yes"), ("what", "blue circle")], TOKENIZER, FORM)
    assert columns(sample.layout) == [
        [BOS, IMAGE, IMAGE, IS, IT, BLUE, MARK, ANSWER, YES, EOS, WHAT, ANSWER, BLUE, CIRCLE, EOS],
        [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 4, 5, 6, 7],
        [-1, 0, 1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1],
        [IMAGE, IMAGE, 0, IT, BLUE, MARK, ANSWER, YES, EOS, 0, ANSWER, BLUE, CIRCLE, EOS, 0],
        [0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0],
    ]
    assert all(column.dtype == np.int32 for column in sample.layout)
    patches, positions = patchify(PICTURE, 2, 2)
    np.testing.assert_array_equal(sample.patches, patches)
    np.testing.assert_array_equal(sample.patch_positions, positions)
    assert sample.patch_images.tolist() == [1] * 8
    assert (sample.id, sample.kind, sample.images.shape, sample.conditions.shape) == (5, "vqa", (0, 4, 4, 3), (0, 3))
    assert sample.sizes == {"tokens": 15, "patches": 8, "images": 0}


def test_a_question_without_an_image():
    sample = text_sample(6, "what is it?", "circle", TOKENIZER, FORM)
    assert columns(sample.layout) == [
        [BOS, WHAT, IS, IT, MARK, ANSWER, CIRCLE, EOS],
        [0] * 8,
        [0, 1, 2, 3, 4, 5, 6, 7],
        [-1] * 8,
        [WHAT, IS, IT, MARK, ANSWER, CIRCLE, EOS, 0],
        [0, 0, 0, 0, 0, 1, 1, 0],
    ]
    assert sample.patches.shape == (0, 12)
    assert sample.patch_positions.shape == (0, 2)


def test_a_description_conditions_the_image_it_describes():
    sample = description_sample(7, "blue circle", PICTURE, TOKENIZER, FORM)
    assert columns(sample.layout) == [
        [BOS, BLUE, CIRCLE, GENERATE, GENERATE, GENERATE],
        [0] * 6,
        [0, 1, 2, 3, 4, 5],
        [-1] * 6,
        [BLUE, CIRCLE, GENERATE, GENERATE, GENERATE, 0],
        [1, 1, 0, 0, 0, 0],
    ]
    assert sample.conditions.tolist() == [[3, 4, 5]]
    np.testing.assert_array_equal(sample.images, resize(PICTURE, 4)[None])
    assert (sample.conditions.dtype, sample.images.dtype) == (np.int32, np.float32)


def test_prompts_are_the_samples_without_what_is_asked_for():
    asked = question_prompt(PICTURE, "what is it?", TOKENIZER, FORM)
    answered = vqa_sample(0, PICTURE, [("what is it?", "circle")], TOKENIZER, FORM)
    for prompt, full in zip(asked.layout[:4], answered.layout[:4], strict=True):
        np.testing.assert_array_equal(prompt, full[:-2])
    assert not asked.layout.target_mask.any()
    np.testing.assert_array_equal(asked.patches, answered.patches)
    longer = question_prompt(PICTURE, "what is it?", TOKENIZER, FORM, answer=[CIRCLE])
    np.testing.assert_array_equal(longer.layout.tokens, answered.layout.tokens[:-1])

    np.testing.assert_array_equal(
        text_prompt("what is it?", TOKENIZER, FORM, answer=[CIRCLE]).layout.tokens,
        text_sample(0, "what is it?", "circle", TOKENIZER, FORM).layout.tokens[:-1],
    )

    drawn = description_sample(3, "blue circle", PICTURE, TOKENIZER, FORM)
    to_draw = description_prompt(3, "blue circle", TOKENIZER, FORM)
    np.testing.assert_array_equal(to_draw.layout.tokens, drawn.layout.tokens)
    np.testing.assert_array_equal(to_draw.conditions, drawn.conditions)
    assert (to_draw.images.shape, to_draw.layout.target_mask.any()) == (drawn.images.shape, False)


def test_a_target_that_nothing_predicts_is_refused():
    with pytest.raises(DataError, match="first token of a trunk or branch cannot be a target"):
        lay_out([BOS], [[WHAT, EOS]], [(), (0,)])


def test_a_large_image_is_shrunk_to_the_cap():
    sample = vqa_sample(0, np.zeros((64, 64, 3), np.uint8), [("what", "yes")], TOKENIZER, FORM)
    assert len(sample.patches) == FORM.patches


def test_the_format_follows_the_model():
    model = ModelConfig(
        encoders=(VisionConfig(patch=4, merge=3),), generators=(GeneratorConfig(image_size=16, conditions=2),)
    )
    assert SampleFormat.of(model, patches=36) == SampleFormat(4, 3, 16, 2, 36)
    assert (SampleFormat.of(model, 36).cell, SampleFormat.of(model, 36).patch_width) == (9, 48)


@pytest.mark.parametrize(
    ("model", "patches", "message"),
    [
        (ModelConfig(encoders=()), 16, "the model has 0 and 1"),
        (ModelConfig(generators=()), 16, "the model has 1 and 0"),
        (
            ModelConfig(encoders=(VisionConfig(channels=1, pixel_mean=(0.0,), pixel_deviation=(1.0,)),)),
            16,
            "vision.channels is 1",
        ),
        (ModelConfig(backbone=BackboneConfig()), 18, r"patches = 18 must be a multiple of merge² = 4"),
        (ModelConfig(), 0, "patches is 0"),
    ],
)
def test_a_model_it_cannot_feed_is_refused(model, patches, message):
    with pytest.raises(DataError, match=message):
        SampleFormat.of(model, patches)
