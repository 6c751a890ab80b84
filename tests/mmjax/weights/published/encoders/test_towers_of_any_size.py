"""DINOv2, DINOv3 and Pixtral: features of pictures of any size beside transformers, there and back."""

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

WIDTH = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 4}
SMALL = {**WIDTH, "intermediate_size": 36}
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
# (class, its configuration, mean and deviation of pixels)
CASES = {
    "dinov2": ("Dinov2Model", transformers.Dinov2Config(**WIDTH), IMAGENET),
    "dinov2, gated": (
        "Dinov2Model",
        transformers.Dinov2Config(**WIDTH, use_swiglu_ffn=True, qkv_bias=False, layerscale_value=0.5),
        IMAGENET,
    ),
    "dinov2, registers": (
        "Dinov2WithRegistersModel",
        transformers.Dinov2WithRegistersConfig(**WIDTH, num_register_tokens=4),
        IMAGENET,
    ),
    "dinov3": ("DINOv3ViTModel", transformers.DINOv3ViTConfig(**SMALL, num_register_tokens=4), IMAGENET),
    "dinov3, gated": (
        "DINOv3ViTModel",
        transformers.DINOv3ViTConfig(**SMALL, use_gated_mlp=True, hidden_act="silu", key_bias=True, mlp_bias=False),
        IMAGENET,
    ),
    "pixtral": ("PixtralVisionModel", transformers.PixtralVisionConfig(**SMALL, hidden_act="silu"), CLIP),
}
SIZES = ((16, 16), (16, 24), (8, 16), (8, 40))  # of the table, and others; some sides are smaller, some larger


@pytest.fixture(scope="module")
def towers(tmp_path_factory):
    """Returns a function that gives the tower of a name."""
    made = {}

    def make(kind):
        if kind not in made:
            named, config, _ = CASES[kind]
            made[kind] = saved_tower(getattr(transformers, named)(config), tmp_path_factory.mktemp("tower") / "saved")
        return made[kind]

    return make


@pytest.mark.parametrize("kind", CASES)
def test_features_of_pictures_of_any_size_match_transformers(kind, towers):
    torch, tower = single_threaded_torch(), towers(kind)

    def published_features(pixels):
        with torch.no_grad():
            found = tower.theirs(torch.from_numpy(published_pixels(pixels, *CASES[kind][2])))
        return found.last_hidden_state[0].numpy()

    assert_features_match(tower, published_features, SIZES, merge=2)


@pytest.mark.parametrize("kind", CASES)
def test_export_after_import_is_bit_identical(kind, towers, tmp_path):
    assert_exported_bit_identical(towers(kind), tmp_path / "again")


@pytest.mark.parametrize(
    ("model_type", "changed", "said"),
    [
        ("dinov2", {"layerscale_value": 0}, "layerscale_value is 0"),
        ("dinov2", {"hidden_act": "tanh"}, "hidden_act is 'tanh'"),
        ("dinov2_with_registers", {"image_size": [16, 8]}, "image_size is"),
        ("dinov3_vit", {"layerscale_value": None}, "layerscale_value is None"),
        ("dinov3_vit", {"patch_size": [4, 8]}, "patch_size is"),
        ("pixtral", {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.rope_type is 'linear'"),
        ("pixtral", {"head_dim": 16}, "head_dim is 16; only 12"),
    ],
)
def test_unsupported_values_are_refused_by_key(model_type, changed, said):
    with pytest.raises(ValueError, match=said):
        registry.find_architecture(model_type).read_config({**SMALL, **changed})


def test_published_configurations_are_read():
    """What the files of Pixtral 12B, DINOv2 giant and DINOv3 7B say."""
    pixtral = {"model_type": "pixtral", "head_dim": 64, "hidden_act": "silu", "image_size": 1024, "rope_theta": 10000.0}
    _, config = registry.read_architecture(pixtral)
    assert (config.width, config.depth, config.ffn, config.activation, config.rope.base) == (
        1024,
        24,
        4096,
        "silu",
        1e4,
    )
    giant = {"hidden_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 24, "mlp_ratio": 4}
    _, config = registry.read_architecture(
        {"model_type": "dinov2", **giant, "image_size": 518, "patch_size": 14, "use_swiglu_ffn": True}
    )
    assert (config.ffn, config.grid, config.gated, config.activation) == (4096, 37, True, "silu")
    large = {"hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32, "intermediate_size": 8192}
    _, config = registry.read_architecture(
        {"model_type": "dinov3_vit", **large, "num_register_tokens": 4, "use_gated_mlp": True, "hidden_act": "silu"}
    )
    assert (config.ffn, config.registers, config.rope.base, config.rope.coordinates) == (8192, 4, 100.0, "centred")
