"""The example of a kind of encoder: registration, parameters, and packed rows."""

import dataclasses

import numpy as np
import pytest

from configs.architectures import BackboneConfig, ModelConfig
from configs.common.errors import UserError
from data.data_config import DataConfig
from data.packing.pipeline import training_batches
from mmjax.api.encoders import register_encoder
from mmjax.models.model import model_modules
from sharding.specs.encoders import linear_embedding_layer, transformer_encoder_spec
from tests.examples.loading import load_example

BACKBONE = BackboneConfig(vocabulary=16, width=16, depth=1, heads=2, kv_heads=2, ffn=16)
SIZES = {"width": 16, "depth": 1, "heads": 2, "ffn": 16}


@pytest.fixture(scope="module")
def example():
    return load_example("new_encoder")


def test_packed_rows_hold_the_windows_of_their_samples_and_nothing_else(example):
    model = ModelConfig((example.SensorConfig(**SIZES),), BACKBONE, ())
    batches = training_batches(
        DataConfig(rows=3, tokens=64, capacities=(("windows", 24),), prefetch=1), model, example.Recordings("train", 40)
    )
    batch = next(batches)
    arrays = batch.arrays["sensor"]
    for row, ids in enumerate(batch.sample_ids):
        samples = batches.load_samples(ids[ids >= 0])
        values = np.concatenate([sample.encoder_inputs["windows"].values for sample in samples])
        np.testing.assert_array_equal(arrays["windows"][row, : len(values)], values)
        assert not arrays["windows"][row, len(values) :].any() and not arrays["segments"][row, len(values) :].any()
    assert batch.real_and_capacity["sensor"] == (int((arrays["segments"] > 0).sum()), 3 * 24)
    batches.close()


def test_the_module_has_the_parameters_of_the_layer_specs(example):
    assert [module.name for module in model_modules(ModelConfig((example.SensorConfig(**SIZES),), BACKBONE, ()))] == [
        "sensor",
        "backbone",
    ]


def test_a_second_registration_and_specs_of_other_parameters_are_refused(example):
    nothing = dict.fromkeys(("specs", "sample_format", "modules"), lambda config, other: None)
    with pytest.raises(UserError, match="SensorConfig is registered already"):
        register_encoder(example.SensorConfig, **nothing)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Other(example.SensorConfig):
        pass

    register_encoder(
        Other,
        specs=lambda config, backbone: transformer_encoder_spec(config, backbone, linear_embedding_layer(config, 5)),
        sample_format=lambda config, capacity: None,
        modules=lambda config, model: example.transformer_encoder_module(config, model, example.WindowEmbedding),
    )
    with pytest.raises(UserError, match="count 96 parameters in 'embed', the module has 272"):
        model_modules(ModelConfig((Other(**SIZES),), BACKBONE, ()))
