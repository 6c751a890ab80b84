"""EVA's image towers of CLIP models (arXiv 2211.07636, 2303.15389), as timm names them.

The first one, and the largest of the second generation, are vision transformers without a bias of keys; the largest has
post-norm blocks. The others have rotary and learned positions, gated feed-forward layers and inner norms.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from configs.architectures import VisionConfig
from configs.vision_rope import VisionRope
from mmjax.weights.published.channel_orders import InterleavedRotary
from mmjax.weights.published.config_values import require_values
from mmjax.weights.published.encoders.vision_transformer import (
    CLIP_PIXELS,
    block_rules,
    class_token_rule,
    norm_bias,
    patch_embedding_rules,
    position_table_rule,
    require_encoder_round_trip,
    unused_block_patterns,
)
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import IDENTITY, LINEAR, Fused

BLOCK = "blocks.{layer}"
NAMES = {
    "attention_norm": "norm1",
    "attention/output": "attn.proj",
    "mlp_norm": "norm2",
    "mlp/down": "mlp.fc2",
}
GATED = {"mlp/gate": "mlp.fc1_g", "mlp/up": "mlp.fc1_x"}
UNGATED = {"mlp/up": "mlp.fc1"}
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

REQUIRED_VALUES = {
    "attn_type": "eva",
    "class_token": True,
    "init_values": None,
    "no_embed_class": False,
    "num_reg_tokens": 0,
    "qk_norm": False,
    "rope_grid_indexing": "ij",
    "rope_grid_offset": 0.0,
    "rope_rotate_half": False,
    "rope_type": "cat",
    "use_abs_pos_emb": True,
    "use_pre_transformer_norm": False,
}
"""Arguments of timm with the only value that can be computed, which is timm's default too."""

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
    names = {**NAMES, **(GATED if config.gated else UNGATED), **inner_norms}
    encoder = (
        *patch_embedding_rules("patch_embed.proj", config),
        class_token_rule("cls_token", config, leading=(1, 1)),
        position_table_rule("pos_embed", config, leading=(1,)),
        *(_separate_attention_rules(config) if config.gated else _fused_attention_rules(config)),
        *block_rules(BLOCK, names, config),
        *(norm_rules("norm", "norm/norm", norm_bias(config)) if config.final_norm else ()),
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
    kernels = tuple(f"blocks/attention/{name}/kernel" for name in ("query", "key", "value"))
    yield Rule(f"{BLOCK}.attn.qkv.weight", kernels, Fused())
    if "query" in config.biases:
        yield Rule(f"{BLOCK}.attn.q_bias", "blocks/attention/query/bias")
        yield Rule(f"{BLOCK}.attn.v_bias", "blocks/attention/value/bias")


def read_config(values: Mapping[str, Any]) -> VisionConfig:
    """Reads timm's config.json: the name of a model, and the `model_args` that differ from timm's for that name.

    Raises:
        ValueError: An argument has a value that cannot be computed.
    """
    pool = {key: values[key] for key in ("global_pool",) if key in values}
    arguments = {**DEFAULTS, **VARIANTS[values["architecture"]], **pool, **values.get("model_args", {})}
    require_values(arguments, REQUIRED_VALUES)
    gated, rotary = arguments["swiglu_mlp"], arguments["use_rot_pos_emb"]
    if not gated == rotary != arguments["qkv_fused"]:
        raise ValueError(
            f"swiglu_mlp is {gated}, use_rot_pos_emb {rotary} and qkv_fused {arguments['qkv_fused']}; only gates with "
            "rotary positions and separate tensors, or none of them, can be read"
        )
    if gated and not arguments["scale_mlp"]:
        raise ValueError("swiglu_mlp without scale_mlp fuses the gate with another tensor, which can't be read")
    pretrained = values.get("pretrained_cfg", {})
    mean, std = pretrained.get("mean", CLIP_PIXELS.mean), pretrained.get("std", CLIP_PIXELS.std)
    return VisionConfig(
        width=arguments["embed_dim"],
        depth=arguments["depth"],
        heads=arguments["num_heads"],
        ffn=int(arguments["embed_dim"] * arguments["mlp_ratio"]),
        activation="silu" if gated else "gelu",
        gated=gated,
        biases=("query", "value", "output", "mlp") if arguments["qkv_bias"] else ("output", "mlp"),
        inner_norms=tuple(
            layer for layer, key in (("attention", "scale_attn_inner"), ("mlp", "scale_mlp")) if arguments[key]
        ),
        patch=arguments["patch_size"],
        channels=arguments["in_chans"],
        merge=1,
        pixel_mean=tuple(2 * value - 1 for value in mean),
        pixel_std=tuple(2 * value for value in std),
        class_token=True,
        positions="learned",
        grid=_square_side("img_size", arguments["img_size"]) // arguments["patch_size"],
        rope=_rope(arguments) if rotary else None,
        norms="after" if arguments["use_post_norm"] else "before",
        final_norm=arguments["global_pool"] != "avg",
    )


def _rope(arguments: Mapping[str, Any]) -> VisionRope:
    grid = _square_side("ref_feat_shape", arguments["ref_feat_shape"] or 0)
    return VisionRope(float(arguments["rope_temperature"]), grid=grid)


def _square_side(key: str, sides: Any) -> int:
    """Side of a square, which timm gives as one number or as several."""
    lengths = tuple(sides) if isinstance(sides, list | tuple) else (sides,)
    if len(set(lengths)) != 1:
        raise ValueError(f"{key} is {sides!r}; only a square can be computed")
    return lengths[0]


def write_config(config: VisionConfig) -> dict[str, Any]:
    """Writes timm's config.json: the name of a model that timm builds with this configuration, else its arguments."""
    for architecture, arguments in VARIANTS.items():
        values = {"architecture": architecture, "num_classes": 0, "global_pool": arguments["global_pool"]}
        if _is_described_by(config, values):
            return values
    values = {
        "architecture": "eva02_base_patch16_clip_224",
        "num_classes": 0,
        "global_pool": "token" if config.final_norm else "avg",
        "model_args": _model_arguments(config),
    }
    require_encoder_round_trip(config, read_config(values))
    return values


def _is_described_by(config: VisionConfig, values: Mapping[str, Any]) -> bool:
    try:
        require_encoder_round_trip(config, read_config(values))
    except ValueError:
        return False
    return True


def _model_arguments(config: VisionConfig) -> dict[str, Any]:
    rope = config.rope or VisionRope(DEFAULTS["rope_temperature"])
    return {
        "img_size": config.grid * config.patch,
        "patch_size": config.patch,
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth + config.unused_blocks,
        "num_heads": config.heads,
        "mlp_ratio": config.ffn / config.width,
        "qkv_bias": "query" in config.biases,
        "qkv_fused": not config.gated,
        "swiglu_mlp": config.gated,
        "scale_mlp": "mlp" in config.inner_norms,
        "scale_attn_inner": "attention" in config.inner_norms,
        "use_rot_pos_emb": config.rope is not None,
        "rope_temperature": rope.base,
        "ref_feat_shape": [rope.grid] * 2 if rope.grid else None,
        "use_post_norm": config.norms == "after",
    }


def ignored(config: VisionConfig) -> tuple[str, ...]:
    """Tensors of layers after the features, and unused blocks."""
    final_norm = () if config.final_norm else ("norm.*",)
    return ("head.*", "fc_norm.*", *final_norm, *unused_block_patterns(BLOCK, config))


PUBLISHED = (
    PublishedArchitecture(
        name="Eva",
        model_types=tuple(VARIANTS),
        config_type=VisionConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored,
    ),
)
