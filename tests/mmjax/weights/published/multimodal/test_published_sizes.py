"""Names and shapes of whole models of published sizes equal those of transformers' classes, without any weights."""

import pytest

from mmjax.weights.published.rules import match_rules
from mmjax.weights.published_checkpoint import is_ignored_tensor, parameter_shapes, replace_alias
from mmjax.weights.registry import read_architecture
from tests.mmjax.weights.published.parity import single_threaded_torch

pytestmark = pytest.mark.parity

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as omni  # noqa: E402


def text(width: int, depth: int, heads: int, kv_heads: int, ffn: int, **others) -> dict:
    """Values of `text_config`."""
    return {
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        **others,
    }


def rope(*sections: int) -> dict:
    """Rotary positions of time, row and column."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(sections)}}


QWEN2_7B = text(3584, 28, 28, 4, 18944, **rope(16, 24, 24))
QWEN3 = {"head_dim": 128, **rope(24, 20, 20)}
SIGLIP = {
    "hidden_size": 1152,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "intermediate_size": 4304,
    "image_size": 896,
    "patch_size": 14,
    "vision_use_head": False,
}
CASES = {
    "Gemma 3 27B": (
        transformers.Gemma3ForConditionalGeneration,
        {
            "text_config": text(5376, 62, 32, 16, 21504, head_dim=128, query_pre_attn_scalar=168),
            "vision_config": SIGLIP,
        },
    ),
    "InternVL": (transformers.InternVLForConditionalGeneration, {}),
    "Llama 4 Scout": (
        transformers.Llama4ForConditionalGeneration,
        {"vision_config": {"hidden_size": 1408, "image_size": 336, "vision_output_dim": 4096}},
    ),
    "LLaVA 1.5 7B": (transformers.LlavaForConditionalGeneration, {}),
    "LLaVA-NeXT 7B": (transformers.LlavaNextForConditionalGeneration, {}),
    "LLaVA-OneVision 7B": (
        transformers.LlavaOnevisionForConditionalGeneration,
        {"text_config": {"model_type": "qwen2", **text(3584, 28, 28, 4, 18944, vocab_size=152064)}},
    ),
    "PaliGemma 2 3B": (
        transformers.PaliGemmaForConditionalGeneration,
        {
            "text_config": {"model_type": "gemma2", **text(2304, 26, 8, 4, 9216, head_dim=256, vocab_size=257216)},
            "vision_config": {"model_type": "siglip_vision_model", **SIGLIP, "image_size": 224},
            "projection_dim": 2304,
        },
    ),
    "Pixtral 12B": (
        transformers.LlavaForConditionalGeneration,
        {
            "text_config": {"model_type": "mistral", **text(5120, 40, 32, 8, 14336, head_dim=128, vocab_size=131072)},
            "vision_config": {"model_type": "pixtral", "hidden_act": "silu"},
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
    ),
    "Qwen2-Audio 7B": (transformers.Qwen2AudioForConditionalGeneration, {}),
    "Qwen2-VL 7B": (
        transformers.Qwen2VLForConditionalGeneration,
        {"text_config": QWEN2_7B, "vision_config": {"hidden_size": 3584}},
    ),
    "Qwen2.5-Omni 7B": (omni.Qwen2_5OmniThinkerForConditionalGeneration, {"text_config": QWEN2_7B}),
    "Qwen2.5-VL 7B": (
        transformers.Qwen2_5_VLForConditionalGeneration,
        {"text_config": QWEN2_7B, "vision_config": {"out_hidden_size": 3584}},
    ),
    "Qwen3-VL 8B": (
        transformers.Qwen3VLForConditionalGeneration,
        {"text_config": text(4096, 36, 32, 8, 12288, **QWEN3), "vision_config": {"out_hidden_size": 4096}},
    ),
    "Qwen3-VL 30B-A3B": (
        transformers.Qwen3VLMoeForConditionalGeneration,
        {
            "text_config": {
                **text(2048, 48, 32, 4, 6144, **QWEN3),
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 768,
            },
            "vision_config": {"out_hidden_size": 2048},
        },
    ),
}
"""Class of transformers, and what its configuration says otherwise than by default."""


@pytest.mark.parametrize("case", CASES)
def test_names_and_shapes_match_transformers(case):
    torch, (of, values) = single_threaded_torch(), CASES[case]
    with torch.device("meta"):
        theirs = of(of.config_class(**values))
    architecture, config = read_architecture(theirs.config.to_dict())
    found = {
        name: shape
        for match in match_rules(architecture.rules(config), parameter_shapes(config))
        for name, shape in zip(match.tensor_names, match.tensor_shapes, strict=True)
    }
    tensors = {replace_alias(architecture, name): tuple(each.shape) for name, each in theirs.state_dict().items()}
    known = architecture.duplicates(config)
    expected = {
        name: shape
        for name, shape in tensors.items()
        if name not in known and (name in found or not is_ignored_tensor(architecture, config, name))
    }
    assert found == expected
