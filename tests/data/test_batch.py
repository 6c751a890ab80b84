import numpy as np
import pytest

from configs.architectures import GeneratorConfig, ModelConfig, VisionConfig
from data.batch import answers, global_batch
from data.packing import Capacity, pack_samples
from data.samples import SampleFormat, description_sample, question_prompt, text_sample, vqa_sample
from data.tokenizer import ANSWER, WordTokenizer

TOKENIZER = WordTokenizer(("a", "blue", "circle", "is", "it", "no", "yes"))
MODEL = ModelConfig(
    encoders=(VisionConfig(patch=2, merge=2),), generators=(GeneratorConfig(image_size=8, conditions=2),)
)
FORM = SampleFormat.of(MODEL, 32)
CAPACITY = Capacity(tokens=32, patches=32, images=2, samples=4)
PICTURE = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)

ASKED = vqa_sample(11, PICTURE, [("is it blue", "yes"), ("is it a circle", "no")], TOKENIZER, FORM)
DRAWN = description_sample(12, "a blue circle", PICTURE, TOKENIZER, FORM)
TOLD = text_sample(13, "is it blue", "no", TOKENIZER, FORM)


def batch_of(*samples, rows=2, **weights):
    return global_batch(pack_samples(samples, rows, CAPACITY, FORM), MODEL, **weights)


def test_names_shapes_and_types_are_the_contract():
    batch = batch_of(ASKED, DRAWN)
    described = {
        module: {name: (array.dtype.name, array.shape) for name, array in fields.items()}
        for module, fields in batch.arrays.items()
    }
    assert described == {
        "vision": {
            "patches": ("float32", (2, 32, 12)),
            "segments": ("int32", (2, 32)),
            "positions": ("int32", (2, 32, 2)),
        },
        "backbone": {
            "tokens": ("int32", (2, 32)),
            "segments": ("int32", (2, 32)),
            "branches": ("int32", (2, 32)),
            "positions": ("int32", (2, 32)),
            "vision_index": ("int32", (2, 32)),
            "targets": ("int32", (2, 32)),
            "weights": ("float32", (2, 32)),
            "generator_conditions": ("int32", (2, 2, 2)),
        },
        "generator": {
            "images": ("float32", (2, 2, 8, 8, 3)),
            "weights": ("float32", (2, 2)),
            "samples": ("int32", (2, 2)),
        },
    }
    assert all(array.flags["C_CONTIGUOUS"] for fields in batch.arrays.values() for array in fields.values())


def test_the_shapes_do_not_depend_on_what_there_is():
    shapes = [
        [array.shape for fields in batch_of(*samples).arrays.values() for array in fields.values()]
        for samples in ((ASKED, DRAWN, TOLD), (TOLD,), (DRAWN,), (ASKED,))
    ]
    assert all(these == shapes[0] for these in shapes)


def test_losses_are_normalised_over_the_whole_batch():
    batch = batch_of(ASKED, DRAWN, TOLD, language_weight=2.0, generator_weight=0.5)
    # Two words and two <eos>, three words of the description, one word and <eos>.
    assert batch.targets == 4 + 3 + 2
    weights = batch.arrays["backbone"]["weights"]
    assert set(np.unique(weights)) == {np.float32(0), np.float32(2 / 9)}
    assert (weights > 0).sum() == 9
    assert batch.arrays["generator"]["weights"].tolist() == [[0.5, 0.0], [0.0, 0.0]]
    assert batch.arrays["generator"]["samples"][0, 0] == 12


def test_counts_are_what_is_real_of_what_there_is_room_for():
    batch = batch_of(ASKED, DRAWN, TOLD)
    tokens = sum(len(sample.layout.tokens) for sample in (ASKED, DRAWN, TOLD))
    assert batch.counts == {"vision": (16, 64), "backbone": (tokens, 64), "generator": (1, 4)}


def test_a_batch_without_images_or_targets_is_all_zeros_there():
    batch = batch_of(TOLD)
    for module in ("vision", "generator"):
        assert not any(array.any() for array in batch.arrays[module].values())
    assert not batch.arrays["backbone"]["generator_conditions"].any()
    silent = batch_of(DRAWN, language_weight=0.0)
    assert not silent.arrays["backbone"]["weights"].any()


def test_modules_are_called_what_the_model_calls_them():
    model = ModelConfig(
        encoders=(VisionConfig(name="eye", patch=2, merge=2),),
        generators=(GeneratorConfig(name="brush", image_size=8, conditions=2),),
    )
    batch = global_batch(pack_samples([ASKED], 1, CAPACITY, FORM), model)
    assert set(batch.arrays) == set(batch.counts) == {"eye", "backbone", "brush"}


@pytest.mark.parametrize("rows", [1, 2])
def test_answers_finds_every_question_once(rows):
    batch = batch_of(TOLD, ASKED, DRAWN, rows=rows)
    found = answers(batch)
    assert [TOKENIZER.decode([word]) for word in found.words] == ["no", "yes", "no"]
    assert found.sample_ids.tolist() == [13, 11, 11]
    assert found.branches.tolist() == [0, 1, 2]
    assert (batch.arrays["backbone"]["tokens"][found.rows, found.places] == ANSWER).all()


def test_a_prompt_has_no_answer_yet():
    batch = batch_of(question_prompt(PICTURE, "is it blue", TOKENIZER, FORM), TOLD)
    assert (batch.arrays["backbone"]["tokens"] == ANSWER).sum() == 2
    assert answers(batch).sample_ids.tolist() == [13]
