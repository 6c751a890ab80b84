"""EVA's image towers of CLIP models (arXiv 2211.07636, 2303.15389), as timm names them.

The first one, and the largest of the second generation, are vision transformers without a bias of keys; the largest has
post-norm blocks. The others have rotary and learned positions, gated feed-forward layers and inner norms.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from configs.architectures import VisionConfig
from configs.attention.vision_rope import VisionRope
from mmjax.weights.published.channel_orders import InterleavedRotary
from mmjax.weights.published.encoders.shared.vision_keys import (
    CLIP_PIXELS,
    block_count,
    patches,
    query_key_value_bias,
    square_side,
)
from mmjax.weights.published.encoders.shared.vision_rules import (
    MLP_NAMES,
    QUERY_KEY_VALUE,
    TIMM_NAMES,
    block_rules,
    class_token_rule,
    final_norm_rules,
    patch_embedding_rules,
    position_table_rule,
    unused_patterns,
)
from mmjax.weights.published.encoders.shared.vision_transformer import (
    encoder_architecture,
    require_encoder_round_trip,
)
from mmjax.weights.published.key_table import Fields, Fixed, Key, Keys, Values, write_table
from mmjax.weights.published.rules import Rule, Rules, fused_rules, linear_rules
from mmjax.weights.published.tensor_layouts import IDENTITY, LINEAR

BLOCK = "blocks.{layer}"
GATED = {**MLP_NAMES, "mlp/gate": "mlp.fc1_g", "mlp/up": "mlp.fc1_x"}
INNER_NORMS = {"attention": "attn.norm", "mlp": "mlp.norm"}
"""Names in a block of the checkpoint, by the path in a block here."""

DEFAULTS = {
    "img_size": 224,
    "patch_size": 16,
    "in_chans": 3,
    "embed_dim": 768,
    "depth": 12,
    "num_heads": 12,
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "qkv_fused": True,
    "swiglu_mlp": False,
    "scale_mlp": False,
    "scale_attn_inner": False,
    "use_rot_pos_emb": False,
    "rope_temperature": 10000.0,
    "ref_feat_shape": None,
    "use_post_norm": False,
    "global_pool": "avg",
}
"""Arguments that timm assumes for a model that leaves them out."""

SECOND_GENERATION = {
    "mlp_ratio": 4 * 2 / 3,
    "qkv_fused": False,
    "swiglu_mlp": True,
    "scale_mlp": True,
    "scale_attn_inner": True,
    "use_rot_pos_emb": True,
    "ref_feat_shape": (16, 16),
    "global_pool": "token",
}
LARGE = {**SECOND_GENERATION, "patch_size": 14, "embed_dim": 1024, "depth": 24, "num_heads": 16}
VARIANTS = {
    "eva02_base_patch16_clip_224": SECOND_GENERATION,
    "eva02_large_patch14_clip_224": LARGE,
    "eva02_large_patch14_clip_336": {**LARGE, "img_size": 336},
    "eva_giant_patch14_clip_224": {
        "patch_size": 14,
        "embed_dim": 1408,
        "depth": 40,
        "num_heads": 16,
        "mlp_ratio": 6144 / 1408,
        "global_pool": "token",
    },
    "eva02_enormous_patch14_clip_224": {
        "patch_size": 14,
        "embed_dim": 1792,
        "depth": 64,
        "num_heads": 16,
        "mlp_ratio": 15360 / 1792,
        "use_post_norm": True,
        "global_pool": "token",
    },
}
"""Arguments of timm's models, by their names."""


def rules(config: VisionConfig) -> Rules:
    """Rules of the encoder."""
    inner_norms = {f"{layer}/inner_norm": INNER_NORMS[layer] for layer in config.inner_norms}
    names = {**TIMM_NAMES, **(GATED if config.gated else MLP_NAMES), **inner_norms}
    encoder = (
        *patch_embedding_rules("patch_embed.proj", config),
        class_token_rule("cls_token", config, leading=(1, 1)),
        position_table_rule("pos_embed", config, leading=(1,)),
        *(_separate_attention_rules(config) if config.gated else _fused_attention_rules(config)),
        *block_rules(BLOCK, names, config),
        *final_norm_rules("norm", config),
    )
    return {config.name: encoder}


def _separate_attention_rules(config: VisionConfig) -> Iterator[Rule]:
    """Rules for models with gates: separate query, key and value tensors, and rotary pairs of neighbouring channels."""
    attention, bias = f"{BLOCK}.attn", "query" in config.biases
    yield Rule(f"{attention}.q_proj.weight", "blocks/attention/query/kernel", InterleavedRotary(config.heads))
    yield Rule(f"{attention}.k_proj.weight", "blocks/attention/key/kernel", InterleavedRotary(config.heads))
    yield from linear_rules(f"{attention}.v_proj", "blocks/attention/value", LINEAR, bias)
    if bias:
        layout = InterleavedRotary(config.heads, IDENTITY)
        yield Rule(f"{attention}.q_proj.bias", "blocks/attention/query/bias", layout)


def _fused_attention_rules(config: VisionConfig) -> Iterator[Rule]:
    """Rules for models without gates: one tensor for queries, keys and values, and two biases."""
    yield from fused_rules(f"{BLOCK}.attn.qkv", "blocks/attention", QUERY_KEY_VALUE, bias=False)
    if "query" in config.biases:
        yield Rule(f"{BLOCK}.attn.q_bias", "blocks/attention/query/bias")
        yield Rule(f"{BLOCK}.attn.v_bias", "blocks/attention/value/bias")


def _arguments(values: Values) -> Values:
    """Returns the arguments of the model that timm's config.json names, with `model_args`, and its pixels' values."""
    pretrained = values.get("pretrained_cfg", {})
    pixels = {f"image_{key}": pretrained[key] for key in ("mean", "std") if key in pretrained}
    pool = {key: values[key] for key in ("global_pool",) if key in values}
    return {**DEFAULTS, **VARIANTS[values["architecture"]], **pixels, **pool, **values.get("model_args", {})}


def _read_gates(arguments: Values) -> dict[str, Any]:
    gated, rotary = arguments["swiglu_mlp"], arguments["use_rot_pos_emb"]
    if not gated == rotary != arguments["qkv_fused"]:
        raise ValueError(
            f"swiglu_mlp is {gated}, use_rot_pos_emb {rotary} and qkv_fused {arguments['qkv_fused']}; only gates with "
            "rotary positions and separate tensors, or none of them, can be read"
        )
    if gated and not arguments["scale_mlp"]:
        raise ValueError("swiglu_mlp without scale_mlp fuses the gate with another tensor, which can't be read")
    return {"gated": gated, "activation": "silu" if gated else "gelu"}


def _write_gates(config: VisionConfig) -> dict[str, Any]:
    return {
        "qkv_fused": not config.gated,
        "swiglu_mlp": config.gated,
        "use_rot_pos_emb": config.rope is not None,
    }


def _read_rope(arguments: Values) -> dict[str, Any]:
    if not arguments["use_rot_pos_emb"]:
        return {"rope": None}
    grid = square_side("ref_feat_shape", arguments["ref_feat_shape"] or 0)
    return {"rope": VisionRope(float(arguments["rope_temperature"]), grid=grid)}


def _write_rope(config: VisionConfig) -> dict[str, Any]:
    rope = config.rope or VisionRope(DEFAULTS["rope_temperature"])
    return {"rope_temperature": rope.base, "ref_feat_shape": [rope.grid] * 2 if rope.grid else None}


INNER_NORM_KEYS = {"attention": "scale_attn_inner", "mlp": "scale_mlp"}
"""Arguments by the name of the layer in `VisionConfig.inner_norms`."""

ARGUMENTS = (
    Fixed("attn_type", "eva"),
    Fixed("class_token", True),
    Fixed("init_values", None),
    Fixed("no_embed_class", False),
    Fixed("num_reg_tokens", 0),
    Fixed("qk_norm", False),
    Fixed("rope_grid_indexing", "ij"),
    Fixed("rope_grid_offset", 0.0),
    Fixed("rope_rotate_half", False),
    Fixed("rope_type", "cat"),
    Fixed("use_abs_pos_emb", True),
    Fixed("use_pre_transformer_norm", False),
    patches("img_size", read_side=square_side),
    Key("in_chans", "channels"),
    Key("embed_dim", "width"),
    block_count("depth"),
    Key("num_heads", "heads"),
    Keys(
        lambda arguments: {"ffn": int(arguments["embed_dim"] * arguments["mlp_ratio"])},
        lambda config: {"mlp_ratio": config.ffn / config.width},
    ),
    query_key_value_bias("qkv_bias", ("query", "value", "output", "mlp")),
    Keys(_read_gates, _write_gates),
    Keys(
        lambda arguments: {"inner_norms": tuple(layer for layer, key in INNER_NORM_KEYS.items() if arguments[key])},
        lambda config: {key: layer in config.inner_norms for layer, key in INNER_NORM_KEYS.items()},
    ),
    Keys(_read_rope, _write_rope),
    Key(
        "use_post_norm",
        "norms",
        to_field=lambda after: "after" if after else "before",
        to_value=lambda norms: norms == "after",
    ),
    Key(
        "global_pool",
        "final_norm",
        to_field=lambda pool: pool != "avg",
        to_value=lambda final_norm: "token" if final_norm else "avg",
    ),
    CLIP_PIXELS,
    Fields({"class_token": True}),
)
"""Arguments of timm's models; the value of a fixed one is timm's default."""


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """Tensors of layers after the features, and unused blocks."""
    return ("head.*", "fc_norm.*", *unused_patterns(BLOCK, config, "norm"))


_BY_ARGUMENTS = encoder_architecture(
    "Eva", tuple(VARIANTS), ARGUMENTS, prepare=_arguments, rules=rules, ignored=ignored
)


def write_config(config: VisionConfig) -> dict[str, Any]:
    """Writes timm's config.json: the name of a model that timm builds with this configuration, else its arguments."""
    for architecture, arguments in VARIANTS.items():
        values = {"architecture": architecture, "num_classes": 0, "global_pool": arguments["global_pool"]}
        if _is_described_by(config, values):
            return values
    arguments = write_table(ARGUMENTS, config)
    values = {
        "architecture": "eva02_base_patch16_clip_224",
        "num_classes": 0,
        "global_pool": arguments.pop("global_pool"),
        "model_args": arguments,
    }
    require_encoder_round_trip(config, _BY_ARGUMENTS.read_config(values))
    return values


def _is_described_by(config: VisionConfig, values: Values) -> bool:
    try:
        require_encoder_round_trip(config, _BY_ARGUMENTS.read_config(values))
    except ValueError:
        return False
    return True


PUBLISHED = (dataclasses.replace(_BY_ARGUMENTS, write_config=write_config),)
