"""Folders of small random models that transformers saves, by their configuration classes."""

import pathlib
from typing import Any

VOCABULARY = 272  # the byte tokenizer's, and a few
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEAD = {"head_dim": 8}
LOCAL = {**HEAD, "sliding_window": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "router_aux_loss_coef": 0.1}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
TOWER = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4}
VISION = {**TOWER, "intermediate_size": 36, "image_size": 16}
QWEN_VISION = {
    "depth": 2,
    "num_heads": 2,
    "patch_size": 4,
    "hidden_size": 24,
    "out_hidden_size": 32,
    "intermediate_size": 36,
}

DECODERS = {
    "llama": ("Llama", TEXT),
    "qwen2": ("Qwen2", TEXT),
    "mistral": ("Mistral", {**TEXT, **LOCAL}),
    "qwen3": ("Qwen3", {**TEXT, **HEAD}),
    "qwen3_moe": ("Qwen3Moe", {**TEXT, **HEAD, **EXPERTS}),
    "gemma2": ("Gemma2", {**TEXT, **LOCAL, "query_pre_attn_scalar": 12}),
    "gemma3_text": ("Gemma3", {**TEXT, **LOCAL, "query_pre_attn_scalar": 12, "num_hidden_layers": 6}),
    "olmo2": ("Olmo2", TEXT),
    "phi3": ("Phi3", TEXT),
}
"""Prefix of the class, and values of the configuration, of each decoder."""

TOWERS = {
    "siglip2": ("Siglip2Vision", {**TOWER, "intermediate_size": 36, "num_patches": 16}),
    "dinov2": ("Dinov2", {**TOWER, "mlp_ratio": 2, "image_size": 16}),
}
"""Likewise of each vision tower."""

QWEN25_VISION = {**QWEN_VISION, "window_size": 8, "fullatt_block_indexes": [1]}
AUDIO = {
    "num_mel_bins": 16,
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 36,
    "max_source_positions": 20,
}
WHOLE = {
    "gemma3": (
        "Gemma3",
        {
            "vision_config": {**VISION, "vision_use_head": False},
            "text_config": DECODERS["gemma3_text"][1],
            "mm_tokens_per_image": 4,
        },
    ),
    "internvl": (
        "InternVL",
        {
            "vision_config": {**VISION, "image_size": [16, 16], "patch_size": [4, 4]},
            "text_config": {**TEXT, "model_type": "qwen2"},
            "tie_word_embeddings": False,
        },
    ),
    "llava_onevision": (
        "LlavaOnevision",
        {
            "vision_config": {"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
            "text_config": {"model_type": "qwen2", **TEXT},
        },
    ),
    "paligemma": (
        "PaliGemma",
        {
            "vision_config": {"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
            "text_config": {**DECODERS["gemma2"][1], "model_type": "gemma2"},
            "projection_dim": 32,
        },
    ),
    "pixtral": (
        "Llava",
        {
            "vision_config": {"model_type": "pixtral", **VISION},
            "text_config": {**DECODERS["mistral"][1], "model_type": "mistral"},
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
    ),
    "qwen2_5_vl": ("Qwen2_5_VL", {"vision_config": QWEN25_VISION, "text_config": {**TEXT, **MROPE}}),
    "qwen3_vl": (
        "Qwen3VL",
        {
            "vision_config": {**QWEN_VISION, "num_position_embeddings": 25, "deepstack_visual_indexes": [0]},
            "text_config": {**TEXT, **HEAD, **MROPE},
        },
    ),
    "qwen2_audio": ("Qwen2Audio", {"audio_config": AUDIO, "text_config": TEXT}),
    "qwen2_5_omni_thinker": (
        "Qwen2_5OmniThinker",
        {
            "vision_config": QWEN25_VISION,
            "audio_config": {**AUDIO, "n_window": 6, "output_dim": 32},
            "text_config": {**TEXT, **MROPE},
        },
    ),
}
"""Likewise of each whole model."""


def save_small_model(kind: str, folder: pathlib.Path) -> Any:
    """Saves a model of a kind in a folder, and returns it."""
    import torch
    import transformers

    torch.manual_seed(0)
    suffixes = {"ForCausalLM": DECODERS, "Model": TOWERS, "ForConditionalGeneration": WHOLE}
    suffix, ((prefix, values),) = next((suffix, [kinds[kind]]) for suffix, kinds in suffixes.items() if kind in kinds)
    of = getattr(transformers, prefix + suffix)
    model = of(of.config_class(**values)).eval()
    model.save_pretrained(folder)
    return model
