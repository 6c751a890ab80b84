import collections
import itertools

import numpy as np
import pytest

from data.datasets.easy_vqa import (
    EasyVQA,
    colours_and_shapes,
    describe_shape,
    description_sample,
    known_colour_and_shape,
    text_sample,
    vqa_sample,
)
from data.errors import BadSampleError, DataError
from data.media.foreground import crop_to_foreground
from data.media.patches import patchify, resize_to_square
from data.samples.image_format import PatchFormat, image_item
from data.samples.sample import SampleSizes
from data.samples.sample_format import SampleFormat, TargetImageFormat
from data.samples.token_layout import TOKEN_COLUMNS
from data.text.word_tokenizer import ANSWER, BOS, EOS, GENERATE, IMAGE, UNKNOWN, WordTokenizer

FORM = SampleFormat()


def test_every_question_of_the_package_is_contained_once(train, held_out):
    for source, images, questions in ((train, 4000, 38575), (held_out, 1000, 9673)):
        assert len(source.image_ids) == images
        assert collections.Counter(itertools.chain(*source.pairs.values())) == collections.Counter(source.questions)
        assert {kind: len(samples) for kind, samples in source.samples_by_kind(FORM).items()} == {
            "vqa": images,
            "description": images,
            "text": questions,
        }


def test_both_splits_share_one_vocabulary_that_covers_them(train, held_out):
    assert train.tokenizer == held_out.tokenizer
    assert train.tokenizer.vocabulary_size == 7 + 28
    words = " ".join(itertools.chain(*train.questions, *held_out.questions))
    assert UNKNOWN not in train.tokenizer.encode(words)


def test_colours_and_shapes_are_those_of_the_answers():
    colours, shapes = colours_and_shapes()
    assert colours == {"black", "blue", "brown", "gray", "green", "red", "teal", "yellow"}
    assert shapes == {"circle", "rectangle", "triangle"}


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], (None, None)),
        ([("what color is the shape?", "blue")], ("blue", None)),
        ([("what shape is present?", "circle")], (None, "circle")),
        ([("what is the blue shape?", "circle")], ("blue", "circle")),
        ([("what is the color of the circle?", "red")], ("red", "circle")),
        ([("is there a teal shape?", "yes")], ("teal", None)),
        ([("is there a teal shape?", "no")], (None, None)),
        ([("is there not a teal shape?", "no")], ("teal", None)),
        ([("is no teal shape present?", "yes")], (None, None)),
        ([("is no circle present?", "no"), ("is a red shape present?", "yes")], ("red", "circle")),
    ],
)
def test_colour_and_shape_follow_from_the_pairs(pairs, expected):
    assert known_colour_and_shape(pairs) == expected


def test_contradicting_pairs_are_refused():
    with pytest.raises(DataError, match="blue and red"):
        known_colour_and_shape([("is there a blue shape?", "yes"), ("what color is the shape?", "red")])


def test_descriptions_name_what_is_known():
    assert [
        describe_shape(*known) for known in (("blue", "circle"), (None, "circle"), ("blue", None), (None, None))
    ] == [
        "a blue circle",
        "a circle",
        "a blue shape",
        "a shape",
    ]


def test_descriptions_agree_with_the_images(held_out):
    # The picture's own pixels are the judge: the shape's colour is the one furthest from the corners' background.
    ids = [
        image_id for image_id in held_out.image_ids if known_colour_and_shape(held_out.pairs[image_id])[0] is not None
    ]
    reference = {"red": 0, "green": 1, "blue": 2}
    checked = 0
    for image_id in ids[:300]:
        colour, _ = known_colour_and_shape(held_out.pairs[image_id])
        if colour in reference:
            image = held_out.image(image_id).astype(int)
            pixel = image.reshape(-1, 3)[np.abs(image - image[0, 0]).sum(-1).argmax()]
            assert pixel.argmax() == reference[colour], (image_id, colour, pixel)
            checked += 1
    assert checked > 50


def test_samples_hold_all_questions_of_their_image(train):
    sample = train.samples_by_kind(FORM)["vqa"][3]
    image_id = train.image_ids[3]
    pairs = train.pairs[image_id]
    assert sample.layout.branches.max() == len(pairs)
    for branch, (question, answer) in enumerate(pairs, start=1):
        tokens = sample.layout.tokens[sample.layout.branches == branch]
        assert train.tokenizer.decode(tokens) == f"{question} {answer}"
    assert sample.sizes.lengths["patches"] == len(sample.load(0).encoder_inputs["patches"].values) == 64


def test_indices_outside_a_kind_are_an_index_error(train):
    samples = train.samples_by_kind(FORM)["vqa"]
    for index in (-1, 4000):
        with pytest.raises(IndexError, match=f"sample {index} of 4000"):
            samples[index]


def test_unreadable_images_are_named(tmp_path):
    broken = tmp_path / "broken.png"
    whole = EasyVQA("test")
    path = whole._image_paths[whole.image_ids[0]]
    with open(path, "rb") as file:
        broken.write_bytes(file.read()[:60])
    source = EasyVQA("test", image_paths=dict.fromkeys(whole.image_ids, broken))
    with pytest.raises(BadSampleError, match="broken.png"):
        source.samples_by_kind(FORM)["vqa"][0]


def test_missing_files_and_splits_are_named():
    with pytest.raises(DataError, match="choose one of train, test"):
        EasyVQA("validation")
    with pytest.raises(DataError, match="no file for image 0, 1, 2, 3, 4 and 995 more"):
        EasyVQA("test", image_paths={})


TOKENIZER = WordTokenizer(("?", "blue", "circle", "is", "it", "what", "yes"))
MARK, BLUE, CIRCLE, IS, IT, WHAT, YES = range(7, 14)
SMALL_FORMAT = SampleFormat(
    (PatchFormat(module="vision", patch=2, merge=2, max_length=16),), TargetImageFormat("generator", 4, 3)
)
PICTURE = np.random.default_rng(0).integers(0, 256, (4, 8, 3), np.uint8)


def shown(pixels):
    return image_item(lambda: pixels, pixels.shape[:2], SMALL_FORMAT.encoder_formats["patches"])


def columns(layout):
    names = ("tokens", "branches", "positions")
    first = [getattr(layout, name).tolist() for name in names]
    return [*first, layout.encoder_indices["patches"].tolist(), layout.targets.tolist(), layout.target_mask.tolist()]


def test_questions_are_branches_after_one_image():
    outline = vqa_sample(shown(PICTURE), [("is it blue?", "yes"), ("what", "blue circle")], TOKENIZER, SMALL_FORMAT)
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
    assert sample.sizes == {"tokens": 15, "patches": 8, "images": 0}
    assert outline.sizes == SampleSizes(tokens=15, items={"patches": (8,)}, targets=5)


def test_layout_of_a_question_without_an_image():
    sample = text_sample("what is it?", "circle", TOKENIZER, SMALL_FORMAT).load(6)
    assert columns(sample.layout) == [
        [BOS, WHAT, IS, IT, MARK, ANSWER, CIRCLE, EOS],
        [0] * 8,
        [0, 1, 2, 3, 4, 5, 6, 7],
        [-1] * 8,
        [WHAT, IS, IT, MARK, ANSWER, CIRCLE, EOS, 0],
        [0, 0, 0, 0, 0, 1, 1, 0],
    ]
    assert [array.shape for array in sample.encoder_inputs["patches"]] == [(0, 12), (0,), (0, 2)]


def test_descriptions_condition_their_target_image():
    sample = description_sample("blue circle", lambda: resize_to_square(PICTURE, 4), TOKENIZER, SMALL_FORMAT).load(7)
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


def test_large_images_are_scaled_down_to_the_limit():
    outline = vqa_sample(shown(np.zeros((64, 64, 3), np.uint8)), [("what", "yes")], TOKENIZER, SMALL_FORMAT)
    assert (
        outline.sizes.lengths["patches"]
        == len(outline.load(0).encoder_inputs["patches"].values)
        == SMALL_FORMAT.encoder_formats["patches"].max_length
    )


def test_images_that_differ_from_their_header_are_refused():
    liar = image_item(lambda: PICTURE, (4, 4), SMALL_FORMAT.encoder_formats["patches"], "liar.png")
    with pytest.raises(BadSampleError, match=r"liar.png cannot be read \(8 patches where its header announced 4\)"):
        vqa_sample(liar, [("what", "yes")], TOKENIZER, SMALL_FORMAT).load(0)


def test_the_image_of_a_description_is_the_part_that_is_generated(train):
    shapes = EasyVQA("train", generated_part="shape")
    form = SampleFormat(target_images=TargetImageFormat(conditions=2, size=16))
    for index in (0, 1, 3999):
        image = train.image(train.image_ids[index])
        for source, part in ((train, image), (shapes, crop_to_foreground(image))):
            (target,) = source.samples_by_kind(form)["description"][index].target_images
            np.testing.assert_array_equal(target.load(), resize_to_square(part, 16))


def test_an_unknown_part_of_a_picture_is_refused():
    with pytest.raises(DataError, match=r"EasyVQA\.generated_part is 'circle'; choose one of picture, shape"):
        EasyVQA("test", generated_part="circle")
