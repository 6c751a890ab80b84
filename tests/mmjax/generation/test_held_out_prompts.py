"""Prompts cut from held-out samples are laid out as the prompts of `mmjax.generate` are."""

import dataclasses

import easy_vqa
import numpy as np
import pytest

from data.data_config import DataConfig
from data.datasets.easy_vqa import EasyVQA
from data.datasets.prompts import image_prompt_metadata, prompt_metadata, prompt_record
from data.errors import BadSampleError
from data.records import Media
from data.samples.sample_format import SampleFormat
from mmjax.generation.held_out_prompts import held_out_descriptions, held_out_questions

FORMAT = SampleFormat()
CAPACITY = DataConfig(rows=8, tokens=256, patches=128, images=1).capacity


@pytest.fixture(scope="module")
def held_out() -> EasyVQA:
    return EasyVQA("test")


def assert_same_layout(cut, whole) -> None:
    for name in ("tokens", "positions", "branches"):
        np.testing.assert_array_equal(getattr(cut.layout, name), getattr(whole.layout, name), err_msg=name)
    for field, indices in whole.layout.encoder_indices.items():
        np.testing.assert_array_equal(cut.layout.encoder_indices[field], indices)
    assert not cut.layout.target_mask.any()


def test_a_question_is_the_prompt_that_a_user_would_write(held_out):
    prompts = held_out_questions(held_out, FORMAT, CAPACITY, 4)
    assert len(prompts) == 4 and len({prompt.sample.id for prompt in prompts}) == 4
    paths = easy_vqa.get_test_image_paths()
    for prompt in prompts:
        image_id = held_out.image_ids[prompt.sample.id]
        asked = [(held_out.tokenizer.decode(held_out.tokenizer.encode(q)), a) for q, a in held_out.pairs[image_id]]
        assert (prompt.text, prompt.answer) in asked
        question = next(
            q for q, _ in held_out.pairs[image_id] if held_out.tokenizer.encode(q) == encoded(prompt, held_out)
        )
        record = prompt_record(question, {"image": [Media.from_file(paths[image_id])]})
        typed = prompt_metadata(record, held_out.prompt_format, held_out.tokenizer, FORMAT).load(0)
        assert_same_layout(prompt.sample, typed)
        np.testing.assert_array_equal(
            prompt.sample.encoder_inputs["patches"].values, typed.encoder_inputs["patches"].values
        )
        (image,) = prompt.images
        np.testing.assert_array_equal(image, held_out.image(image_id))


def encoded(prompt, dataset) -> list[int]:
    special = dataset.tokenizer.special_tokens
    return [int(token) for token in prompt.sample.layout.tokens if token not in special.ids - {special.unknown}]


def test_a_description_is_the_prompt_that_a_user_would_write(held_out):
    prompts = held_out_descriptions(held_out, FORMAT, CAPACITY, 2)
    assert len(prompts) == 2
    for prompt in prompts:
        typed = image_prompt_metadata(
            prompt_record(prompt.text), held_out.prompt_format, held_out.tokenizer, FORMAT
        ).load(0)
        assert_same_layout(prompt.sample, typed)
        np.testing.assert_array_equal(prompt.sample.condition_positions, typed.condition_positions)
        assert prompt.sample.target_images.shape == (1, 32, 32, 3)


def test_the_same_prompts_are_chosen_every_time(held_out):
    def texts(count):
        return [(p.sample.id, p.text) for p in held_out_questions(EasyVQA("test"), FORMAT, CAPACITY, count)]

    assert texts(3) == texts(3) == texts(5)[:3]
    assert held_out_questions(held_out, FORMAT, CAPACITY, 0) == []


def test_data_without_questions_or_images_to_generate_has_no_prompts(held_out):
    without_generator = SampleFormat(target_images=None)
    assert held_out_descriptions(held_out, without_generator, CAPACITY, 2) == []

    class Unscored:
        tokenizer, prompt_format, evaluated_kinds = held_out.tokenizer, held_out.prompt_format, ()
        samples_by_kind = held_out.samples_by_kind

    assert held_out_questions(Unscored(), FORMAT, CAPACITY, 2) == []


def test_samples_that_cannot_be_used_are_passed_over(held_out):
    class Half:
        """Every other sample cannot be read."""

        def __init__(self, samples):
            self._samples = samples

        def __len__(self):
            return len(self._samples)

        def __getitem__(self, index):
            if index % 2:
                raise BadSampleError(f"image {index}", "its file is gone")
            return self._samples[index]

    class Damaged:
        tokenizer, prompt_format = held_out.tokenizer, held_out.prompt_format
        evaluated_kinds = held_out.evaluated_kinds

        def samples_by_kind(self, sample_format):
            return {kind: Half(samples) for kind, samples in held_out.samples_by_kind(sample_format).items()}

    prompts = held_out_questions(Damaged(), FORMAT, CAPACITY, 4)
    assert len(prompts) == 4 and all(prompt.sample.id % 2 == 0 for prompt in prompts)
    too_small = dataclasses.replace(CAPACITY, tokens=8)
    assert held_out_questions(held_out, FORMAT, too_small, 4) == []
