"""U-Nets of Stable Diffusion (arXiv 2112.10752) and AudioLDM (2301.12503), `UNet2DConditionModel` of diffusers."""

from collections.abc import Iterator, Mapping
from typing import Any

from configs.architectures import UNetConfig
from mmjax.weights.published.config_values import require_equal, require_values
from mmjax.weights.published.generators.diffusers_format import (
    DIFFUSERS_FILE_STEM,
    heads_per_level,
    residual_block_rules,
)
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, fused_rules, linear_rules, norm_rules
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

DOWN_BLOCK_TYPES = {True: "CrossAttnDownBlock2D", False: "DownBlock2D"}
UP_BLOCK_TYPES = {True: "CrossAttnUpBlock2D", False: "UpBlock2D"}
"""Types of a level's blocks, by whether the level has attention."""


def read_config(values: Mapping[str, Any]) -> UNetConfig:
    """Reads the config.json of diffusers' UNet2DConditionModel.

    The number of conditions and the noise schedule are not in it; they have the values of Stable Diffusion.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    require_values(values, REQUIRED_VALUES)
    require_equal(values, ("in_channels", "out_channels"))
    widths = tuple(values["block_out_channels"])
    has_attention = [kind == DOWN_BLOCK_TYPES[True] for kind in values["down_block_types"]]
    for key, kinds, levels in (
        ("down_block_types", DOWN_BLOCK_TYPES, has_attention),
        ("up_block_types", UP_BLOCK_TYPES, has_attention[::-1]),
    ):
        required = [kinds[attention] for attention in levels]
        if list(values[key]) != required:
            raise ValueError(f"{key} is {values[key]!r}; only {required!r} can be computed")
    second_attention, width = _second_attention(values, widths)
    pooled, pooled_width = _pooled(values)
    if width and pooled_width and width != pooled_width:
        raise ValueError(
            f"cross_attention_dim is {width} and projection_class_embeddings_input_dim is {pooled_width}; only equal "
            "ones can be computed"
        )
    size = values.get("sample_size") or 2 ** (len(widths) - 1)
    return UNetConfig(
        image_size=size if isinstance(size, int) else tuple(size),
        channels=values["in_channels"],
        patch=1,
        widths=widths,
        blocks=values["layers_per_block"],
        attention_levels=tuple(level for level, attention in enumerate(has_attention) if attention),
        head_width=tuple(
            level_width // heads
            for level_width, heads in zip(widths, heads_per_level(values, len(widths)), strict=True)
        ),
        groups=values["norm_num_groups"],
        second_attention=second_attention,
        linear_projection=bool(values.get("use_linear_projection", False)),
        pooled=pooled,
        conditions=77 if second_attention == "conditions" else 1,
        condition_width=width or pooled_width or 1,
    )


def _second_attention(values: Mapping[str, Any], widths: tuple[int, ...]) -> tuple[str, int]:
    """Returns the source of the second attention, and the width of the conditions; 0 if it does not read them."""
    source = values["cross_attention_dim"]
    if isinstance(source, int):
        return "conditions", source
    if tuple(source) == widths and values.get("class_embed_type"):
        return "map", 0  # AudioLDM passes no conditions to it, so that it attends to the map again
    if len(set(source)) == 1:
        return "conditions", source[0]
    raise ValueError(f"cross_attention_dim is {source!r}; only one width, or block_out_channels, can be computed")


def _pooled(values: Mapping[str, Any]) -> tuple[str, int]:
    """Returns how the class embedding is combined with the time embedding, and the width of its inputs."""
    kind = values.get("class_embed_type")
    if kind is None:
        return "none", 0
    if kind != "simple_projection":
        raise ValueError(f"class_embed_type is {kind!r}; only 'simple_projection' can be computed")
    combination = "concatenated" if values.get("class_embeddings_concat") else "added"
    return combination, values["projection_class_embeddings_input_dim"]


def write_config(config: UNetConfig) -> dict[str, Any]:
    """Writes the config.json of diffusers' UNet2DConditionModel, without `sample_size`: weights are for any size."""
    if config.patch != 1:
        raise ValueError(f"patch is {config.patch}; diffusers moves no pixels into the channels, so it must be 1")
    has_attention = [level in config.attention_levels for level in range(len(config.widths))]
    channels = config.latent_shape[-1]
    sources = {"conditions": config.condition_width, "map": list(config.widths)}
    if config.second_attention == "map" and config.pooled == "none":
        raise ValueError("second_attention is 'map' and pooled is 'none'; diffusers would attend to conditions")
    values = {
        "_class_name": "UNet2DConditionModel",
        **REQUIRED_VALUES,
        "in_channels": channels,
        "out_channels": channels,
        "block_out_channels": list(config.widths),
        "down_block_types": [DOWN_BLOCK_TYPES[attention] for attention in has_attention],
        "up_block_types": [UP_BLOCK_TYPES[attention] for attention in has_attention[::-1]],
        "layers_per_block": config.blocks,
        # diffusers calls it so by mistake: these are numbers of heads.
        "attention_head_dim": [config.heads(level) for level in range(len(config.widths))],
        "norm_num_groups": config.groups,
        "cross_attention_dim": sources[config.second_attention],
        "use_linear_projection": config.linear_projection,
    }
    if config.pooled == "none":
        return values
    return values | {
        "class_embed_type": "simple_projection",
        "projection_class_embeddings_input_dim": config.condition_width,
        "class_embeddings_concat": config.pooled == "concatenated",
    }


def rules(config: UNetConfig) -> Rules:
    """Rules of the U-Net."""
    return {config.name: tuple(_unet_rules(config))}


def _unet_rules(config: UNetConfig) -> Iterator[Rule]:
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
    for number in range(last):
        down, up = f"down_blocks.{number}.downsamplers.0.conv", f"up_blocks.{number}.upsamplers.0.conv"
        yield from linear_rules(down, f"{UNET}/shrink/{number}", CONVOLUTION, bias=True)
        yield from linear_rules(up, f"{UNET}/grow/{number}", CONVOLUTION, bias=True)
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
        path = f"{parameter}/{name}_attention"
        yield from norm_rules(f"{block}.{norm}", f"{parameter}/{name}_norm", bias=True)
        for letter, projected in (("q", "query"), ("k", "key"), ("v", "value")):
            yield from linear_rules(f"{block}.{attention}.to_{letter}", f"{path}/{projected}", LINEAR, bias=False)
        yield from linear_rules(f"{block}.{attention}.to_out.0", f"{path}/output", LINEAR, bias=True)
    yield from norm_rules(f"{block}.norm3", f"{parameter}/mlp_norm", bias=True)
    yield from fused_rules(f"{block}.ff.net.0.proj", f"{parameter}/mlp", ("up", "gate"), bias=True)
    yield from linear_rules(f"{block}.ff.net.2", f"{parameter}/mlp/down", LINEAR, bias=True)


PUBLISHED = (
    PublishedArchitecture(
        name="UNet2DConditionModel",
        model_types=("UNet2DConditionModel",),
        config_type=UNetConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        file_stem=DIFFUSERS_FILE_STEM,
    ),
)
