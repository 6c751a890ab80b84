import dataclasses

import numpy as np
import pytest

from configs.architectures import ExpertsConfig, ModelConfig, UNetConfig, VisionConfig
from data.data_config import RowCapacity
from data.datasets.easy_vqa import description_sample, text_sample, vqa_sample
from data.media.patches import resize_to_square
from data.packing.global_batch import build_global_batch
from data.packing.loss_normalization import BatchTotals
from data.packing.rows.packed_rows import pack_samples
from data.samples.image_format import image_item
from data.samples.sample_format import SampleFormat
from data.text.word_tokenizer import WordTokenizer

TOKENIZER = WordTokenizer(("a", "blue", "circle", "is", "it", "no", "yes"))
MODEL = ModelConfig(encoders=(VisionConfig(patch=2, merge=2),), generators=(UNetConfig(image_size=8, conditions=2),))
FORM = SampleFormat.for_model(MODEL, {"patches": 32})
CAPACITY = RowCapacity(tokens=32, lengths={"patches": 32}, images=2, samples=4)
PICTURE = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)

SHOWN = image_item(lambda: PICTURE, (8, 8), FORM.encoder_formats["patches"])
ASKED = vqa_sample(SHOWN, [("is it blue", "yes"), ("is it a circle", "no")], TOKENIZER, FORM).load(11)
DRAWN = description_sample("a blue circle", lambda: resize_to_square(PICTURE, 8), TOKENIZER, FORM).load(12)
TOLD = text_sample("is it blue", "no", TOKENIZER, FORM).load(13)


def batch_of(*samples, rows=2, **weights):
    return build_global_batch(pack_samples(samples, rows, CAPACITY, FORM), MODEL, FORM, **weights)


def test_names_shapes_and_dtypes_of_the_arrays():
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


def test_shapes_do_not_depend_on_the_samples():
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


def test_counts_are_real_units_and_capacity():
    batch = batch_of(ASKED, DRAWN, TOLD)
    tokens = sum(len(sample.layout.tokens) for sample in (ASKED, DRAWN, TOLD))
    assert batch.real_and_capacity == {"vision": (16, 64), "backbone": (tokens, 64), "generator": (1, 4)}


def test_weights_are_zero_without_images_or_targets():
    batch = batch_of(TOLD)
    for module in ("vision", "generator"):
        assert not any(array.any() for array in batch.arrays[module].values())
    assert not batch.arrays["backbone"]["generator_conditions"].any()
    silent = batch_of(DRAWN, language_weight=0.0)
    assert not silent.arrays["backbone"]["weights"].any()


def test_arrays_are_named_after_the_models_modules():
    model = ModelConfig(
        encoders=(VisionConfig(name="eye", patch=2, merge=2),),
        generators=(UNetConfig(name="brush", image_size=8, conditions=2),),
    )
    batch = build_global_batch(
        pack_samples([ASKED], 1, CAPACITY, FORM), model, SampleFormat.for_model(model, {"patches": 32})
    )
    assert set(batch.arrays) == set(batch.real_and_capacity) == {"eye", "backbone", "brush"}


def test_rows_of_other_hosts_count_in_the_normalisation():
    whole = pack_samples([TOLD, DRAWN], 2, CAPACITY, FORM)
    here = pack_samples([TOLD], 2, CAPACITY, FORM)
    batch = build_global_batch(here, MODEL, FORM, totals=BatchTotals.from_rows(whole, FORM))
    expected = build_global_batch(whole, MODEL, FORM)
    assert (batch.targets, batch.real_and_capacity) == (expected.targets, expected.real_and_capacity)
    weights = batch.arrays["backbone"]["weights"]
    assert weights[weights > 0].tolist() == [np.float32(1 / 5)] * 2


def test_tokens_have_shares_of_the_balancing_loss_of_experts():
    model = dataclasses.replace(MODEL, backbone=dataclasses.replace(MODEL.backbone, experts=ExpertsConfig()))
    whole = pack_samples([TOLD, DRAWN], 2, CAPACITY, FORM)
    batch = build_global_batch(whole, model, FORM)
    shares, segments = (batch.arrays["backbone"][name] for name in ("balancing_weights", "segments"))
    assert shares.dtype == np.float32 and shares.sum() == pytest.approx(1)
    np.testing.assert_array_equal(shares > 0, segments > 0)
    here = build_global_batch(
        pack_samples([TOLD], 2, CAPACITY, FORM), model, FORM, totals=BatchTotals.from_rows(whole, FORM)
    )
    assert here.arrays["backbone"]["balancing_weights"].max() == shares.max()
