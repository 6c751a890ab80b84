"""Llama 4's vision tower, `Llama4VisionModel` of transformers, up to the norm after its blocks.

The class token is the last position there and the first here; attention does not tell them apart. The adapter behind
the tower belongs to the projector (`multimodal/llama4.py`).
"""

from collections.abc import Iterator

from configs.architectures import VisionConfig
from mmjax.weights.published.channel_orders import ColumnsFirst, InterleavedRotary
from mmjax.weights.published.encoders.shared.vision_keys import FFN, HALF_PIXELS, SIZES, patches, rotary_positions
from mmjax.weights.published.encoders.shared.vision_rules import (
    MLP_NAMES,
    block_rules,
    class_token_rule,
    final_norm_rules,
    unused_patterns,
)
from mmjax.weights.published.encoders.shared.vision_transformer import VIT_BASE_DEFAULTS, encoder_architecture
from mmjax.weights.published.key_table import Fields, Keys
from mmjax.weights.published.rules import Rule, Rules, norm_rules
from mmjax.weights.published.table_architecture import with_defaults
from mmjax.weights.published.tensor_layouts import IDENTITY, LINEAR, Fused, PatchConvolution, Reshaped

BLOCK = "model.layers.{layer}"
NAMES = {
    "attention_norm": "input_layernorm",
    "attention/value": "self_attn.v_proj",
    "attention/output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    **MLP_NAMES,
}
ROTATED = {"query": "self_attn.q_proj", "key": "self_attn.k_proj"}
"""Names in a block of the checkpoint, by the path in a block here."""

DEFAULTS = {
    **VIT_BASE_DEFAULTS,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "intermediate_size": 5632,
    "image_size": 448,
    "patch_size": 14,
}
"""Values that transformers assumes where a file leaves them out."""

KEYS = (
    *SIZES,
    FFN,
    patches(),
    HALF_PIXELS,
    rotary_positions("default", coordinates="number"),
    Keys(write=lambda _: {"norm_eps": 1e-5, "hidden_act": "gelu"}),  # the tower has these whatever a file says
    Fields(
        {
            "norm_epsilon": 1e-5,
            "activation": "gelu",
            "class_token": True,
            "patch_bias": False,
            "input_norm": True,
        }
    ),
)


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder."""
    table = (Reshaped((config.grid**2, config.width)), Reshaped((1, config.width)))
    paths = ("embed/table/table", "embed/class_position")
    pixels = PatchConvolution((config.patch, config.patch), flattened=True)
    encoder = (
        Rule("patch_embedding.linear.weight", "embed/pixels/kernel", pixels),
        class_token_rule("class_embedding", config),
        Rule("positional_embedding_vlm", paths, Fused(part_layout=table)),
        *norm_rules("layernorm_pre", "embed/norm", bias=True),
        *block_rules(BLOCK, NAMES, config),
        *_rotated_rules(config),
        *final_norm_rules("layernorm_post", config),
    )
    return {config.name: encoder}


def _rotated_rules(config: VisionConfig) -> Iterator[Rule]:
    """Rules of queries and keys: pairs of neighbouring channels, the channels of columns first."""
    for name, tensor in ROTATED.items():
        for kind, parameter, layout in (("weight", "kernel", LINEAR), ("bias", "bias", IDENTITY)):
            channels = InterleavedRotary(config.heads, ColumnsFirst(config.heads, layout))
            yield Rule(f"{BLOCK}.{tensor}.{kind}", f"blocks/attention/{name}/{parameter}", channels)


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """The adapter, fixed frequencies, and unused blocks."""
    return ("vision_adapter.*", "rotary_embedding.*", *unused_patterns(BLOCK, config, "layernorm_post"))


PUBLISHED = (
    encoder_architecture(
        "Llama4VisionModel",
        ("llama4_vision_model",),
        KEYS,
        prepare=with_defaults(DEFAULTS),
        rules=rules,
        ignored=ignored,
    ),
)
