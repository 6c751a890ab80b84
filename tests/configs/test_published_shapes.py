"""Models of published checkpoints: every parameter has the shape that its tensors have in the published model."""

import dataclasses
import json

import pytest

from configs.architectures import VisionConfig
from configs.training_choices import without_training_choices
from mmjax.weights import registry
from mmjax.weights.published_checkpoint import checkpoint_matches, is_ignored_tensor, replace_alias
from sharding.specs.modules import module_graph
from tests.configs.test_models import model

pytestmark = pytest.mark.parity

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
core = pytest.importorskip("transformers.core_model_loading")

QWEN3_VL_VISION = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}
QWEN3_VL_TEXT = {
    "vocab_size": 151936,
    "num_attention_heads": 32,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True, "mrope_section": [24, 20, 20],
    },
}  # fmt: skip
QWEN3_8B = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_key_value_heads": 8}

# Model -> classes of transformers, and what config.json of the checkpoint binds beyond their defaults.
PUBLISHED = {
    "qwen3_vl_8b": (
        "Qwen3VLConfig",
        "Qwen3VLForConditionalGeneration",
        {
            "vision_config": {**QWEN3_VL_VISION, "out_hidden_size": 4096},
            "text_config": {**QWEN3_VL_TEXT, **QWEN3_8B},
            "tie_word_embeddings": False,
        },
    ),
    "qwen3_vl_30b_a3b": (
        "Qwen3VLMoeConfig",
        "Qwen3VLMoeForConditionalGeneration",
        {
            "vision_config": {**QWEN3_VL_VISION, "out_hidden_size": 2048},
            "text_config": {
                **QWEN3_VL_TEXT,
                "hidden_size": 2048,
                "intermediate_size": 6144,
                "num_hidden_layers": 48,
                "num_key_value_heads": 4,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 768,
            },
            "tie_word_embeddings": False,
        },
    ),
    "gemma3_27b": (
        "Gemma3Config",
        "Gemma3ForConditionalGeneration",
        {
            "text_config": {
                "vocab_size": 262208,
                "hidden_size": 5376,
                "intermediate_size": 21504,
                "num_hidden_layers": 62,
                "num_attention_heads": 32,
                "num_key_value_heads": 16,
                "head_dim": 128,
                "query_pre_attn_scalar": 168,
                "sliding_window": 1024,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                },
            },
            "vision_config": {
                "model_type": "siglip_vision_model",
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "num_hidden_layers": 27,
                "num_attention_heads": 16,
                "image_size": 896,
                "patch_size": 14,
                "vision_use_head": False,
            },
        },
    ),
    "internvl3_5_8b": (
        "InternVLConfig",
        "InternVLForConditionalGeneration",
        {
            "vision_config": {"hidden_size": 1024, "attention_bias": True},
            "text_config": {
                "model_type": "qwen3",
                "vocab_size": 151936,
                "num_attention_heads": 32,
                "head_dim": 128,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
                **QWEN3_8B,
            },
            "tie_word_embeddings": False,
        },
    ),
    "qwen2_5_omni_7b": (
        "Qwen2_5OmniThinkerConfig",
        "Qwen2_5OmniThinkerForConditionalGeneration",
        {
            "text_config": {
                "vocab_size": 152064,
                "hidden_size": 3584,
                "intermediate_size": 18944,
                "num_hidden_layers": 28,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
            },
            "vision_config": {
                "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584,
            },
            "audio_config": {
                "d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
            },
        },
    ),
}  # fmt: skip

PARAMETERS = {
    "qwen3_vl_8b": 8_767_123_696,
    "qwen3_vl_30b_a3b": 31_070_754_032,
    "gemma3_27b": 27_432_406_640,
    "internvl3_5_8b": 8_528_318_464,
}
"""Sums over the tensors of the checkpoints; Qwen2.5-Omni's has the talker's, too."""


def published(name):
    """The configuration of a published model, and its tensors by name and shape."""
    config_class, model_class, values = PUBLISHED[name]
    config = getattr(transformers, config_class)(**values)
    with torch.device("meta"):
        model = getattr(transformers, model_class)(config)
    tensors = core.revert_weight_conversion(model, dict(model.named_parameters()))  # tied ones once
    return json.loads(json.dumps(config.to_dict(), default=str)), {n: tuple(t.shape) for n, t in tensors.items()}


def described(config):
    """What config.json describes of a model: how it trains is the run's choice, and what normalises pixels is in a file
    of its own."""
    encoders = (
        dataclasses.replace(encoder, pixel_mean=(0.0,) * 3, pixel_std=(1.0,) * 3)
        if isinstance(encoder, VisionConfig)
        else encoder
        for encoder in config.encoders
    )
    return without_training_choices(dataclasses.replace(config, encoders=tuple(encoders)))


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_parameter_has_the_shape_of_its_published_tensors(name):
    config_json, shapes = published(name)
    architecture, config = registry.read_architecture(config_json)
    shapes = {replace_alias(architecture, tensor): shape for tensor, shape in shapes.items()}
    matches = checkpoint_matches(architecture, config, model(name))
    expected = {
        tensor: shape
        for match in matches
        for tensor, shape in zip(match.tensor_names, match.tensor_shapes, strict=True)
    }
    assert {tensor: shapes.get(tensor) for tensor in expected} == expected
    left = {tensor for tensor in shapes if tensor not in expected}
    assert all(is_ignored_tensor(architecture, config, tensor) for tensor in left), sorted(left)[:9]
    assert described(model(name)) == dataclasses.replace(described(config), dtype="bfloat16")


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_published_model_has_exactly_its_parameters(name):
    assert sum(module.parameter_count for module in module_graph(model(name)).modules) == PARAMETERS[name]
