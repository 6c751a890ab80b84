"""U-Nets of Stable Diffusion (arXiv 2112.10752) and AudioLDM (2301.12503), `UNet2DConditionModel` of diffusers."""

from collections.abc import Iterator, Sequence
from typing import Any

from configs.architectures import UNetConfig
from mmjax.weights.published.generators.diffusers_format import (
    CHANNELS,
    attention_rules,
    diffusers_architecture,
    only,
    resampling_rules,
    residual_block_rules,
)
from mmjax.weights.published.key_table import EqualKeys, Fields, Key, Keys, Values
from mmjax.weights.published.rules import Rule, fused_rules, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import CONVOLUTION, LINEAR

UNET = "unet/unet"
"""Path of the U-Net in a generator."""

REQUIRED_VALUES = {
    "act_fn": "silu",
    "norm_eps": 1e-5,
    "flip_sin_to_cos": True,
    "freq_shift": 0,
    "center_input_sample": False,
    "downsample_padding": 1,
    "mid_block_type": "UNetMidBlock2DCrossAttn",
    "mid_block_scale_factor": 1,
    "transformer_layers_per_block": 1,
    "only_cross_attention": False,
    "mid_block_only_cross_attention": None,
    "dual_cross_attention": False,
    "num_attention_heads": None,
    "num_class_embeds": None,
    "encoder_hid_dim": None,
    "addition_embed_type": None,
    "resnet_time_scale_shift": "default",
    "resnet_skip_time_act": False,
    "resnet_out_scale_factor": 1.0,
    "time_embedding_type": "positional",
    "time_embedding_dim": None,
    "time_embedding_act_fn": None,
    "timestep_post_act": None,
    "time_cond_proj_dim": None,
    "conv_in_kernel": 3,
    "conv_out_kernel": 3,
    "attention_type": "default",
    "cross_attention_norm": None,
}
"""Keys of config.json with the only value that can be computed."""


def _read_size(values: Values) -> dict[str, Any]:
    size = values.get("sample_size") or 2 ** (len(values["block_out_channels"]) - 1)
    return {"image_size": size if isinstance(size, int) else tuple(size)}


def _block_types(attention_levels: Sequence[int], levels: int) -> dict[str, list[str]]:
    down = ["CrossAttnDownBlock2D" if level in attention_levels else "DownBlock2D" for level in range(levels)]
    return {"down_block_types": down, "up_block_types": [kind.replace("Down", "Up") for kind in reversed(down)]}


def _read_attention_levels(values: Values) -> dict[str, Any]:
    kinds = values["down_block_types"]
    levels = tuple(level for level, kind in enumerate(kinds) if kind == "CrossAttnDownBlock2D")
    for key, required in _block_types(levels, len(kinds)).items():
        if list(values[key]) != required:
            raise ValueError(f"{key} is {values[key]!r}; only {required!r} can be computed")
    return {"attention_levels": levels}


def _read_heads(values: Values) -> dict[str, Any]:
    """Reads the number of heads of each level, which diffusers calls `attention_head_dim` by mistake."""
    widths, heads = values["block_out_channels"], values.get("attention_head_dim", 8)
    heads = (heads,) * len(widths) if isinstance(heads, int) else heads
    return {"head_width": tuple(width // count for width, count in zip(widths, heads, strict=True))}


def _write_heads(config: UNetConfig) -> dict[str, Any]:
    """Writes them; a level without attention may be narrower than a head, and has one."""
    return {"attention_head_dim": [max(config.heads(level), 1) for level in range(len(config.widths))]}


def _read_conditions(values: Values) -> dict[str, Any]:
    second_attention, width = _second_attention(values)
    pooled, pooled_width = _pooled(values)
    if width and pooled_width and width != pooled_width:
        raise ValueError(
            f"cross_attention_dim is {width} and projection_class_embeddings_input_dim is {pooled_width}; only equal "
            "ones can be computed"
        )
    return {
        "second_attention": second_attention,
        "pooled": pooled,
        "conditions": 77 if second_attention == "conditions" else 1,
        "condition_width": width or pooled_width or 1,
    }


def _second_attention(values: Values) -> tuple[str, int]:
    """Returns the source of the second attention, and the width of the conditions; 0 if it does not read them."""
    source = values["cross_attention_dim"]
    if isinstance(source, int):
        return "conditions", source
    if tuple(source) == tuple(values["block_out_channels"]) and values.get("class_embed_type"):
        return "map", 0  # AudioLDM passes no conditions to it, so that it attends to the map again
    if len(set(source)) == 1:
        return "conditions", source[0]
    raise ValueError(f"cross_attention_dim is {source!r}; only one width, or block_out_channels, can be computed")


def _pooled(values: Values) -> tuple[str, int]:
    """Returns how the class embedding is combined with the time embedding, and the width of its inputs."""
    kind = values.get("class_embed_type")
    if kind is None:
        return "none", 0
    if kind != "simple_projection":
        raise ValueError(f"class_embed_type is {kind!r}; only 'simple_projection' can be computed")
    combination = "concatenated" if values.get("class_embeddings_concat") else "added"
    return combination, values["projection_class_embeddings_input_dim"]


def _write_conditions(config: UNetConfig) -> dict[str, Any]:
    if config.second_attention == "map" and config.pooled == "none":
        raise ValueError("second_attention is 'map' and pooled is 'none'; diffusers would attend to conditions")
    sources = {"conditions": config.condition_width, "map": list(config.widths)}
    values = {"cross_attention_dim": sources[config.second_attention]}
    if config.pooled == "none":
        return values
    return values | {
        "class_embed_type": "simple_projection",
        "projection_class_embeddings_input_dim": config.condition_width,
        "class_embeddings_concat": config.pooled == "concatenated",
    }


KEYS = (
    *only(REQUIRED_VALUES),
    Keys(
        EqualKeys(CHANNELS, "channels").read,
        lambda config: dict.fromkeys(CHANNELS, config.latent_shape[-1]),
    ),
    Keys(_read_size),  # it is not written: weights are for any size
    Key("block_out_channels", "widths", to_field=tuple, to_value=list),
    Keys(_read_attention_levels, lambda config: _block_types(config.attention_levels, len(config.widths))),
    Key("layers_per_block", "blocks"),
    Keys(_read_heads, _write_heads),
    Key("norm_num_groups", "groups"),
    Keys(_read_conditions, _write_conditions),
    Key("use_linear_projection", "linear_projection", False, bool),
    Fields({"patch": 1}),
)
"""The number of conditions and the noise schedule are not among the keys; they are read as of Stable Diffusion."""


def rules(config: UNetConfig) -> Iterator[Rule]:
    """Rules of the U-Net."""
    for tensor, name in (("linear_1", "up"), ("linear_2", "down")):
        yield from linear_rules(f"time_embedding.{tensor}", f"{UNET}/time/{name}", LINEAR, bias=True)
    if config.pooled != "none":
        yield from linear_rules("class_embedding", f"{UNET}/condition", LINEAR, bias=True)
    yield from linear_rules("conv_in", f"{UNET}/enter", CONVOLUTION, bias=True)
    yield from norm_rules("conv_norm_out", f"{UNET}/leave_norm", bias=True)
    yield from linear_rules("conv_out", f"{UNET}/leave", CONVOLUTION, bias=True)
    last = len(config.widths) - 1
    for level in range(last + 1):
        up_level = last - level  # levels are numbered in the order in which they are computed
        for block in range(config.blocks):
            skip = not block and level > 0 and config.widths[level] != config.widths[level - 1]
            path = f"{UNET}/down/{level}/{block}"
            yield from _block_rules(config, f"down_blocks.{level}", block, path, level, skip)
        for block in range(config.blocks + 1):
            path = f"{UNET}/up/{up_level}/{block}"
            yield from _block_rules(config, f"up_blocks.{up_level}", block, path, level, True)
    yield from resampling_rules(last + 1, ("down_blocks", UNET), ("up_blocks", UNET))
    middle_in, middle_out = f"{UNET}/middle_in", f"{UNET}/middle_out"
    yield from residual_block_rules("mid_block.resnets.0", f"{middle_in}/residual", embedding=True, skip=False)
    yield from _transformer_rules(config, "mid_block.attentions.0", f"{middle_in}/transformer")
    yield from residual_block_rules("mid_block.resnets.1", f"{middle_out}/residual", embedding=True, skip=False)


def _block_rules(config: UNetConfig, tensor: str, block: int, parameter: str, level: int, skip: bool) -> Iterator[Rule]:
    yield from residual_block_rules(f"{tensor}.resnets.{block}", f"{parameter}/residual", embedding=True, skip=skip)
    if level in config.attention_levels:
        yield from _transformer_rules(config, f"{tensor}.attentions.{block}", f"{parameter}/transformer")


def _transformer_rules(config: UNetConfig, tensor: str, parameter: str) -> Iterator[Rule]:
    projection = LINEAR if config.linear_projection else CONVOLUTION
    yield from norm_rules(f"{tensor}.norm", f"{parameter}/norm", bias=True)
    yield from linear_rules(f"{tensor}.proj_in", f"{parameter}/enter", projection, bias=True)
    yield from linear_rules(f"{tensor}.proj_out", f"{parameter}/leave", projection, bias=True)
    block = f"{tensor}.transformer_blocks.0"
    for norm, attention, name in (("norm1", "attn1", "self"), ("norm2", "attn2", "second")):
        yield from norm_rules(f"{block}.{norm}", f"{parameter}/{name}_norm", bias=True)
        yield from attention_rules(f"{block}.{attention}", f"{parameter}/{name}_attention", bias=False)
    yield from norm_rules(f"{block}.norm3", f"{parameter}/mlp_norm", bias=True)
    yield from fused_rules(f"{block}.ff.net.0.proj", f"{parameter}/mlp", ("up", "gate"), bias=True)
    yield from linear_rules(f"{block}.ff.net.2", f"{parameter}/mlp/down", LINEAR, bias=True)


PUBLISHED = (
    diffusers_architecture(
        "UNet2DConditionModel",
        {"": UNetConfig},
        KEYS,
        rules,
        undescribed=("attention_levels", "head_width"),  # several values of them mean the same
    ),
)
