"""Tables of config.json: their entries in both directions, and small published configurations that read back equal."""

import json
import types

import pytest

from configs.common.errors import UserError
from mmjax.weights.published.key_table import EqualKeys, Fixed, Key, Nested, read_fields, write_table
from mmjax.weights.registry import read_architecture, write_architecture
from tests.mmjax.weights.published.small_checkpoints import (
    DECODERS,
    EXPERTS,
    HEAD,
    MROPE,
    TEXT,
    TOWERS,
    VISION,
    WHOLE,
)

CHANNELS = EqualKeys(("inputs", "outputs"), "channels", 4)
TABLE = (CHANNELS, Nested("tower", (Key("layers", "depth"), Fixed("act", "gelu", written=True))))
TOWER = {"vision_config": VISION, "text_config": TEXT}
MROPE_TEXT = {**TEXT, **HEAD, **MROPE}
SMALL = {
    **{kind: {"model_type": kind, **values} for kind, (_, values) in {**DECODERS, **TOWERS, **WHOLE}.items()},
    "pixtral": {"model_type": "llava", **WHOLE["pixtral"][1]},
    "llava": {"model_type": "llava", **TOWER, "vision_feature_layer": -2},
    "llava_next": {"model_type": "llava_next", **TOWER, "image_grid_pinpoints": [[16, 32]]},
    "internvl_chat": {
        **{"model_type": "internvl_chat", "ps_version": "v2", "select_layer": -2, "downsample_ratio": 0.25},
        **{"vision_config": {**VISION, "patch_size": 2}, "llm_config": {**TEXT, "model_type": "internlm2"}},
    },
    "llama4": {
        **{
            "model_type": "llama4",
            "text_config": {**TEXT, **HEAD, "num_local_experts": 4, "intermediate_size_mlp": 24},
        },
        "vision_config": {**VISION, "intermediate_size": 96, "vision_output_dim": 4096},
    },
    "qwen2_vl": {
        **{"model_type": "qwen2_vl", "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}, **TEXT},
        "vision_config": {"depth": 2, "num_heads": 2, "patch_size": 4, "embed_dim": 24, "mlp_ratio": 2},
    },
    "qwen3_vl_moe": {**WHOLE["qwen3_vl"][1], "model_type": "qwen3_vl_moe", "text_config": {**MROPE_TEXT, **EXPERTS}},
    "autoencoder": {
        **{"_class_name": "AutoencoderKL", "in_channels": 3, "out_channels": 3, "latent_channels": 6},
        **{"block_out_channels": [8, 16], "layers_per_block": 2, "norm_num_groups": 4, "shift_factor": 0.2},
        **{"down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2},
        **{"use_quant_conv": False, "use_post_quant_conv": False},
    },
    "unet": {
        **{"_class_name": "UNet2DConditionModel", "in_channels": 4, "out_channels": 4, "block_out_channels": [32, 64]},
        **{"down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"], "layers_per_block": 1, "norm_num_groups": 8},
        **{"up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"], "attention_head_dim": 4},
        **{"cross_attention_dim": [32, 64], "class_embed_type": "simple_projection"},
        "projection_class_embeddings_input_dim": 12,
    },
    "stable diffusion 3": {
        **{"_class_name": "SD3Transformer2DModel", "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 3},
        **{"sample_size": 8, "patch_size": 2, "in_channels": 3, "out_channels": 3, "caption_projection_dim": 16},
        **{"pos_embed_max_size": 10, "joint_attention_dim": 12, "pooled_projection_dim": 10, "qk_norm": "rms_norm"},
        "dual_attention_layers": [0],
    },
    "flux": {
        **{"_class_name": "FluxTransformer2DModel", "num_attention_heads": 2, "attention_head_dim": 12},
        **{"num_layers": 2, "num_single_layers": 2, "in_channels": 12, "axes_dims_rope": [2, 4, 6]},
        **{"joint_attention_dim": 12, "pooled_projection_dim": 10, "guidance_embeds": True},
    },
}
"""Contents of a config.json of each published architecture that has more than one form or more than one module."""


def test_keys_of_equal_values_are_one_field_and_an_object_has_entries_of_its_own():
    values = {"inputs": 8, "outputs": 8, "tower": {"layers": 3, "act": "gelu"}}
    assert read_fields(TABLE, values) == {"channels": 8, "depth": 3}
    assert write_table(TABLE, types.SimpleNamespace(channels=8, depth=3)) == values
    assert read_fields((CHANNELS,), {}) == {"channels": 4}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"inputs": 8, "tower": {"layers": 3}}, "inputs is 8 and outputs is 4; only equal ones can be computed"),
        ({"tower": {"layers": 3, "act": "silu"}}, "tower.act is 'silu'; only 'gelu' can be computed"),
    ],
)
def test_what_cannot_be_computed_is_named_by_its_whole_key(values, message):
    with pytest.raises(ValueError, match=message):
        read_fields(TABLE, values)


@pytest.mark.parametrize("kind", SMALL)
def test_a_small_published_configuration_that_is_written_reads_back_equal(kind):
    architecture, config = read_architecture(SMALL[kind])
    values = json.loads(json.dumps(write_architecture(architecture, config)))
    assert read_architecture(values) == (architecture, config)


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        ("gemma3", {"mm_tokens_per_image": 9}, "mm_tokens_per_image is 9 for 4 x 4 patches"),
        ("internvl", {"vision_feature_select_strategy": "full"}, "vision_feature_select_strategy is 'full'"),
        ("internvl", {"downsample_ratio": 0.7}, "downsample_ratio is 0.7; only one divided by a whole number"),
        ("internvl_chat", {"ps_version": "v1"}, "ps_version is 'v1'"),
        ("internvl_chat", {"select_layer": -3}, "select_layer is -3; only one from -1 to -2"),
        ("llama4", {"vision_config": {**VISION, "pixel_shuffle_ratio": 1.0}}, "vision_config.*only equal widths"),
        ("llava", {"projector_hidden_act": "tanh"}, "projector_hidden_act is 'tanh'; choose one of gelu"),
        ("pixtral", {"vision_feature_select_strategy": "default"}, "only 'full' can be computed"),
        ("paligemma", {"projection_dim": 20}, "projection_dim is 20, and text_config.hidden_size 32"),
        ("qwen3_vl", {"text_config": TEXT}, "rope_parameters has no mrope_section"),
        ("autoencoder", {"use_quant_conv": True}, "use_quant_conv is True and use_post_quant_conv is False"),
        ("unet", {"act_fn": "gelu"}, "act_fn is 'gelu'; only 'silu' can be computed"),
        ("unet", {"up_block_types": ["UpBlock2D"] * 2}, "up_block_types is"),
        ("stable diffusion 3", {"caption_projection_dim": 8}, "caption_projection_dim is 8; only 16"),
    ],
)
def test_a_value_that_no_model_of_the_format_computes_is_refused_by_its_key(kind, changed, message):
    with pytest.raises(UserError, match=message):
        read_architecture({**SMALL[kind], **changed})
