"""U-Nets of Stable Diffusion (arXiv 2112.10752) and AudioLDM (2301.12503), as diffusers names them."""

from collections.abc import Iterator, Mapping
from typing import Any

from configs.architectures import GeneratorConfig
from mmjax.weights.published.generators.diffusers_format import (
    DIFFUSERS_FILE_STEM,
    heads_per_level,
    require_equal,
    require_fixed,
)
from mmjax.weights.published.generators.residual_rules import residual_block_rules
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import CONVOLUTION, IDENTITY, LINEAR, Fused

OURS = "unet/unet"

# What our U-Net computes and no other: keys of config.json with their only value.
FIXED = {
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
DOWN = {True: "CrossAttnDownBlock2D", False: "DownBlock2D"}
UP = {True: "CrossAttnUpBlock2D", False: "UpBlock2D"}


# ---------------------------------------------------------------- config.json


def read_config(values: Mapping[str, Any]) -> GeneratorConfig:
    """Of diffusers' UNet2DConditionModel. How many conditions there are, and the noise schedule, stand elsewhere."""
    require_fixed(values, FIXED)
    require_equal(values, ("in_channels", "out_channels"))
    widths = tuple(values["block_out_channels"])
    attends = [kind == DOWN[True] for kind in values["down_block_types"]]
    for key, kinds, wanted in (("down_block_types", DOWN, attends), ("up_block_types", UP, attends[::-1])):
        if list(values[key]) != [kinds[each] for each in wanted]:
            raise ValueError(f"{key} is {values[key]!r}; only {[kinds[each] for each in wanted]!r} can be computed")
    second, width = _second_attention(values, widths)
    pooled, pooled_width = _pooled(values)
    if width and pooled_width and width != pooled_width:
        raise ValueError(
            f"cross_attention_dim is {width} and projection_class_embeddings_input_dim is {pooled_width}; only equal "
            "ones can be computed"
        )
    size = values.get("sample_size") or 2 ** (len(widths) - 1)
    return GeneratorConfig(
        image_size=size if isinstance(size, int) else tuple(size),
        channels=values["in_channels"],
        patch=1,
        widths=widths,
        blocks=values["layers_per_block"],
        attention_levels=tuple(level for level, attention in enumerate(attends) if attention),
        head_width=tuple(
            each // heads for each, heads in zip(widths, heads_per_level(values, len(widths)), strict=True)
        ),
        groups=values["norm_num_groups"],
        second_attention=second,
        linear_projection=bool(values.get("use_linear_projection", False)),
        pooled=pooled,
        conditions=77 if second == "conditions" else 1,
        condition_width=width or pooled_width or 1,
    )


def _second_attention(values: Mapping[str, Any], widths: tuple[int, ...]) -> tuple[str, int]:
    """What the second attention attends to, and the width of conditions if it is these; 0 otherwise."""
    source = values["cross_attention_dim"]
    if isinstance(source, int):
        return "conditions", source
    if tuple(source) == widths and values.get("class_embed_type"):
        return "map", 0  # AudioLDM hands it no conditions, so that it attends to the map again
    if len(set(source)) == 1:
        return "conditions", source[0]
    raise ValueError(f"cross_attention_dim is {source!r}; only one width, or block_out_channels, can be computed")


def _pooled(values: Mapping[str, Any]) -> tuple[str, int]:
    """What the class embedding does, and the width it is made from."""
    kind = values.get("class_embed_type")
    if kind is None:
        return "none", 0
    if kind != "simple_projection":
        raise ValueError(f"class_embed_type is {kind!r}; only 'simple_projection' can be computed")
    how = "concatenated" if values.get("class_embeddings_concat") else "added"
    return how, values["projection_class_embeddings_input_dim"]


def write_config(config: GeneratorConfig) -> dict[str, Any]:
    """For diffusers' UNet2DConditionModel. `sample_size` is left out: the weights are for any size."""
    if config.patch != 1:
        raise ValueError(f"patch is {config.patch}; diffusers folds no pixels, so it must be 1")
    attends = [level in config.attention_levels for level in range(len(config.widths))]
    channels = config.latent_shape[-1]
    sources = {"conditions": config.condition_width, "map": list(config.widths)}
    if config.second_attention == "map" and config.pooled == "none":
        raise ValueError("second_attention is 'map' and pooled is 'none'; diffusers would want conditions to attend to")
    values = {
        "_class_name": "UNet2DConditionModel",
        **FIXED,
        "in_channels": channels,
        "out_channels": channels,
        "block_out_channels": list(config.widths),
        "down_block_types": [DOWN[each] for each in attends],
        "up_block_types": [UP[each] for each in attends[::-1]],
        "layers_per_block": config.blocks,
        # The name is diffusers' mistake: it holds numbers of heads.
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


# ---------------------------------------------------------------- tensors


def rules(config: GeneratorConfig) -> Rules:
    """The U-Net's."""
    return {config.name: tuple(_rules(config))}


def _rules(config: GeneratorConfig) -> Iterator[Rule]:
    for theirs, ours in (("linear_1", "up"), ("linear_2", "down")):
        yield from linear_rules(f"time_embedding.{theirs}", f"{OURS}/time/{ours}", LINEAR, bias=True)
    if config.pooled != "none":
        yield from linear_rules("class_embedding", f"{OURS}/condition", LINEAR, bias=True)
    yield from linear_rules("conv_in", f"{OURS}/enter", CONVOLUTION, bias=True)
    yield from norm_rules("conv_norm_out", f"{OURS}/leave_norm", bias=True)
    yield from linear_rules("conv_out", f"{OURS}/leave", CONVOLUTION, bias=True)
    last = len(config.widths) - 1
    for level in range(last + 1):
        for block in range(config.blocks):
            skip = not block and level > 0 and config.widths[level] != config.widths[level - 1]
            yield from _block(config, f"down_blocks.{level}", block, f"{OURS}/down/{level}/{block}", level, skip)
        for block in range(config.blocks + 1):
            yield from _block(
                config, f"up_blocks.{last - level}", block, f"{OURS}/up/{last - level}/{block}", level, True
            )
    for place in range(last):
        yield from linear_rules(
            f"down_blocks.{place}.downsamplers.0.conv", f"{OURS}/shrink/{place}", CONVOLUTION, bias=True
        )
        yield from linear_rules(f"up_blocks.{place}.upsamplers.0.conv", f"{OURS}/grow/{place}", CONVOLUTION, bias=True)
    yield from residual_block_rules("mid_block.resnets.0", f"{OURS}/middle_in/residual", embedding=True, skip=False)
    yield from _transformer(config, "mid_block.attentions.0", f"{OURS}/middle_in/transformer")
    yield from residual_block_rules("mid_block.resnets.1", f"{OURS}/middle_out/residual", embedding=True, skip=False)


def _block(config: GeneratorConfig, theirs: str, block: int, ours: str, level: int, skip: bool) -> Iterator[Rule]:
    yield from residual_block_rules(f"{theirs}.resnets.{block}", f"{ours}/residual", embedding=True, skip=skip)
    if level in config.attention_levels:
        yield from _transformer(config, f"{theirs}.attentions.{block}", f"{ours}/transformer")


def _transformer(config: GeneratorConfig, theirs: str, ours: str) -> Iterator[Rule]:
    projection = LINEAR if config.linear_projection else CONVOLUTION
    yield from norm_rules(f"{theirs}.norm", f"{ours}/norm", bias=True)
    yield from linear_rules(f"{theirs}.proj_in", f"{ours}/enter", projection, bias=True)
    yield from linear_rules(f"{theirs}.proj_out", f"{ours}/leave", projection, bias=True)
    inner = f"{theirs}.transformer_blocks.0"
    for before, attention, name in (("norm1", "attn1", "self"), ("norm2", "attn2", "second")):
        yield from norm_rules(f"{inner}.{before}", f"{ours}/{name}_norm", bias=True)
        for letter, of in (("q", "query"), ("k", "key"), ("v", "value")):
            yield from linear_rules(
                f"{inner}.{attention}.to_{letter}", f"{ours}/{name}_attention/{of}", LINEAR, bias=False
            )
        yield from linear_rules(f"{inner}.{attention}.to_out.0", f"{ours}/{name}_attention/output", LINEAR, bias=True)
    yield from norm_rules(f"{inner}.norm3", f"{ours}/mlp_norm", bias=True)
    for kind, part, layout in (("weight", "kernel", LINEAR), ("bias", "bias", IDENTITY)):
        parts = tuple(f"{ours}/mlp/{half}/{part}" for half in ("up", "gate"))
        yield Rule(f"{inner}.ff.net.0.proj.{kind}", parts, Fused(part_layout=layout))
    yield from linear_rules(f"{inner}.ff.net.2", f"{ours}/mlp/down", LINEAR, bias=True)


PUBLISHED = (
    PublishedArchitecture(
        "UNet2DConditionModel",
        ("UNet2DConditionModel",),
        GeneratorConfig,
        read_config,
        write_config,
        rules,
        file_stem=DIFFUSERS_FILE_STEM,
    ),
)
