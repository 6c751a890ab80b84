"""SigLIP 2 of any resolution beside transformers, and of a fixed one by SigLIP's rules."""

import numpy as np
import pytest

from mmjax.weights import registry
from mmjax.weights.published_checkpoint import as_model, open_checkpoint
from tests.mmjax.weights.published.encoders.tower_parity import (
    assert_exported_bit_identical,
    assert_features_match,
    saved_tower,
)
from tests.mmjax.weights.published.encoders.vision_parity import published_pixels
from tests.mmjax.weights.published.parity import (
    export_parameters,
    import_parameters,
    randomise_weights,
    same_tensors,
    single_threaded_torch,
)

pytestmark = pytest.mark.parity

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PATCH, SIDE = 4, 4
SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 36,
    "patch_size": PATCH,
    "num_patches": SIDE**2,
}
SIZES = ((16, 16), (16, 24), (8, 16), (8, 40))  # of the table, and others; some sides are smaller, some larger


@pytest.fixture(scope="module")
def tower(tmp_path_factory):
    model = transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**SMALL))
    return saved_tower(model, tmp_path_factory.mktemp("siglip2") / "saved")


def test_features_of_pictures_of_any_size_match_transformers(tower):
    torch = single_threaded_torch()

    def published_features(pixels):
        values = published_pixels(pixels, (0.5,) * 3, (0.5,) * 3)[0]  # [channels, height, width]
        rows, columns = values.shape[1] // PATCH, values.shape[2] // PATCH
        patches = values.reshape(3, rows, PATCH, columns, PATCH).transpose(1, 3, 2, 4, 0).reshape(1, rows * columns, -1)
        with torch.no_grad():
            found = tower.theirs(
                torch.from_numpy(np.ascontiguousarray(patches)),
                pixel_attention_mask=torch.ones(1, rows * columns, dtype=torch.long),
                spatial_shapes=torch.tensor([[rows, columns]]),
            )
        return found.last_hidden_state[0].numpy()

    assert_features_match(tower, published_features, SIZES, merge=2)


def test_export_after_import_is_bit_identical(tower, tmp_path):
    assert_exported_bit_identical(tower, tmp_path / "again")


def test_the_tower_is_read_from_a_whole_model_and_the_rest_is_kept(tower, tmp_path):
    text = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 36}
    both = transformers.Siglip2Config(vision_config=SMALL, text_config={**text, "vocab_size": 20})
    randomise_weights(transformers.Siglip2Model(both)).save_pretrained(tmp_path / "whole")
    model = as_model(open_checkpoint(tmp_path / "whole").config)
    assert model == as_model(tower.config)
    module, _ = tower.import_into(tower.config)
    parameters = import_parameters(tmp_path / "whole", model, "vision", (module,))
    export_parameters(tmp_path / "whole", model, "vision", parameters, tmp_path / "again")
    assert same_tensors(tmp_path / "whole", tmp_path / "again")


def test_checkpoints_of_a_fixed_resolution_are_siglips():
    """What config.json of siglip2-so400m-patch14-384 says: a SigLIP with a larger vocabulary."""
    values = {
        "model_type": "siglip",
        "text_config": {"model_type": "siglip_text_model", "vocab_size": 256000, "hidden_size": 1152},
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 1152,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "intermediate_size": 4304,
            "patch_size": 14,
            "image_size": 384,
        },
    }
    architecture, config = registry.read_architecture(values)
    assert architecture.name == "SiglipVisionModel"
    assert (config.width, config.depth, config.grid, config.interpolation) == (1152, 27, 27, "bicubic")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_patches": 15}, "num_patches is 15; only the number of a square"),
        ({"patch_size": [4, 8]}, "patch_size is"),
        ({"hidden_act": "tanh"}, "hidden_act is 'tanh'"),
    ],
)
def test_unsupported_values_are_refused_by_key(changed, said):
    with pytest.raises(ValueError, match=said):
        registry.find_architecture("siglip2_vision_model").read_config({**SMALL, **changed})
