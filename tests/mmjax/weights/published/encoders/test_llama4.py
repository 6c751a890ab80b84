"""Llama 4's vision tower beside transformers, up to the norm after its blocks."""

import numpy as np
import pytest

from mmjax.weights import registry
from tests.mmjax.weights.published.encoders.tower_parity import (
    assert_exported_bit_identical,
    assert_features_match,
    saved_tower,
)
from tests.mmjax.weights.published.encoders.vision_parity import published_pixels
from tests.mmjax.weights.published.parity import single_threaded_torch

pytestmark = pytest.mark.parity

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "image_size": 16,
    "patch_size": 4,
    "vision_output_dim": 48,
    "projector_input_dim": 48,
    "projector_output_dim": 48,
}
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.fixture(scope="module")
def tower(tmp_path_factory):
    model = transformers.Llama4VisionModel(transformers.Llama4VisionConfig(**SMALL))
    return saved_tower(model, tmp_path_factory.mktemp("llama4") / "saved")


def test_features_match_transformers(tower):
    torch, seen = single_threaded_torch(), []
    handle = tower.theirs.layernorm_post.register_forward_hook(lambda module, inputs, output: seen.append(output))

    def published_features(pixels):
        seen.clear()
        with torch.no_grad():
            tower.theirs(torch.from_numpy(published_pixels(pixels, *HALVES)))
        (features,) = seen
        return np.roll(features[0].numpy(), 1, axis=0)  # the class token is the last there

    assert_features_match(tower, published_features, [(16, 16), (16, 16)], merge=2)
    handle.remove()


def test_export_after_import_is_bit_identical(tower, tmp_path):
    assert_exported_bit_identical(tower, tmp_path / "again")


def test_unsupported_values_are_refused_by_key():
    read_config = registry.find_architecture("llama4_vision_model").read_config
    with pytest.raises(ValueError, match="rope_type is 'linear'"):
        read_config({**SMALL, "rope_parameters": {"rope_type": "linear"}})
    with pytest.raises(ValueError, match="image_size is"):
        read_config({**SMALL, "image_size": [16, 8]})
