"""Transformers of Stable Diffusion 3 and 3.5 (arXiv 2403.03206) and of Flux.1, as diffusers has them.

`DiTTransformer2DModel` is left out: every block of it has an embedding of class labels, which a generator that is
conditioned on hidden states has no use for.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from configs.architectures import DiTConfig, RectifiedFlowSchedule
from configs.diffusion_transformer import DiTBlockRun
from mmjax.weights.published.config_values import require_values
from mmjax.weights.published.generators.diffusers_format import DIFFUSERS_FILE_STEM
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, linear_rules, require_round_trip
from mmjax.weights.published.tensor_layouts import (
    IDENTITY,
    LINEAR,
    ChannelsFirst,
    Fused,
    InterleavedRotary,
    PatchConvolution,
    TensorLayout,
)

NOT_IN_CONFIG = (
    "image_size", "channels", "conditions", "condition_dropout", "loss", "schedule", "autoencoder",
)  # fmt: skip
"""Fields that a config.json of a transformer does not describe."""

MLP_RATIO = 4
FLUX_PATCH = 2  # of latents; diffusers' pipeline folds them into channels before the transformer
FLUX_DEV_GUIDANCE = 3.5
FLUX_SHIFT = math.exp(1.15)  # of Flux.1 dev for images of 1024 pixels

STREAMS = {
    "patches": {
        "modulation": "norm1.linear",
        "query": "attn.to_q", "key": "attn.to_k", "value": "attn.to_v", "output": "attn.to_out.0",
        "query_norm": "attn.norm_q", "key_norm": "attn.norm_k",
        "up": "ff.net.0.proj", "down": "ff.net.2",
    },
    "conditions": {
        "modulation": "norm1_context.linear",
        "query": "attn.add_q_proj", "key": "attn.add_k_proj", "value": "attn.add_v_proj", "output": "attn.to_add_out",
        "query_norm": "attn.norm_added_q", "key_norm": "attn.norm_added_k",
        "up": "ff_context.net.0.proj", "down": "ff_context.net.2",
    },
    "own_attention": {
        "query": "attn2.to_q", "key": "attn2.to_k", "value": "attn2.to_v", "output": "attn2.to_out.0",
        "query_norm": "attn2.norm_q", "key_norm": "attn2.norm_k",
    },
}  # fmt: skip
"""Names of a stream's layers in diffusers, by their names here."""


# ---------------------------------------------------------------- Stable Diffusion 3


def read_sd3_config(values: Mapping[str, Any]) -> DiTConfig:
    """Reads the config.json of diffusers' SD3Transformer2DModel.

    The number of conditions and the schedule are not in it; they have the values of Stable Diffusion 3.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    width = values["num_attention_heads"] * values["attention_head_dim"]
    require_values(values, {"caption_projection_dim": width, "out_channels": values["in_channels"]})
    image_attention = tuple(values.get("dual_attention_layers") or ())
    if image_attention != tuple(range(len(image_attention))):
        raise ValueError(f"dual_attention_layers is {image_attention}; only the first layers can be computed")
    if values.get("qk_norm") not in (None, "rms_norm"):
        raise ValueError(f"qk_norm is {values['qk_norm']!r}; only None and 'rms_norm' can be computed")
    patch, size = values["patch_size"], values["sample_size"]
    return DiTConfig(
        image_size=size,
        channels=values["in_channels"],
        patch=patch,
        width=width,
        heads=values["num_attention_heads"],
        ffn=MLP_RATIO * width,
        double_layers=values["num_layers"],
        image_attention_layers=len(image_attention),
        plain_layers=0,
        qk_norm=values.get("qk_norm") is not None,
        position_grid=values["pos_embed_max_size"],
        position_base=size // patch,
        conditions=333,
        condition_width=values["joint_attention_dim"],
        pooled_width=_pooled_width(values),
        schedule=RectifiedFlowSchedule(shift=3.0),
    )


def write_sd3_config(config: DiTConfig) -> dict[str, Any]:
    """Writes the config.json of diffusers' SD3Transformer2DModel."""
    channels = config.latent_shape[-1]
    if not config.position_base or not config.double_layers or not config.pooled:
        raise ValueError("position_base, double_layers and pooled_width must be above 0")
    values = {
        "_class_name": "SD3Transformer2DModel",
        "sample_size": config.position_base * config.patch,
        "patch_size": config.patch,
        "in_channels": channels,
        "out_channels": channels,
        "num_layers": config.double_layers,
        "attention_head_dim": config.head_width,
        "num_attention_heads": config.heads,
        "joint_attention_dim": config.condition_width,
        "caption_projection_dim": config.width,
        "pooled_projection_dim": config.pooled,
        "pos_embed_max_size": config.position_grid,
        "dual_attention_layers": list(range(config.image_attention_layers)),
        "qk_norm": "rms_norm" if config.qk_norm else None,
    }
    require_round_trip(config, read_sd3_config(values), (*NOT_IN_CONFIG, "pooled_width"))
    return values


def sd3_rules(config: DiTConfig) -> Rules:
    """Rules of Stable Diffusion 3's transformer."""
    return {config.name: tuple(_sd3_rules(config))}


def _sd3_rules(config: DiTConfig) -> Iterator[Rule]:
    yield Rule("pos_embed.proj.weight", "embed/patches/kernel", PatchConvolution((config.patch,) * 2))
    yield Rule("pos_embed.proj.bias", "embed/patches/bias")
    yield from _embedding_rules(config)
    yield from _double_rules(config)
    yield from linear_rules("norm_out.linear", "head/modulation/projection", LINEAR, bias=True)
    yield from linear_rules("proj_out", "head/leave", LINEAR, bias=True)


def _ignored_positions(config: DiTConfig) -> tuple[str, ...]:
    """The table of sinusoidal positions, which are computed here."""
    del config
    return ("pos_embed.pos_embed",)


# ---------------------------------------------------------------- Flux.1


def read_flux_config(values: Mapping[str, Any]) -> DiTConfig:
    """Reads the config.json of diffusers' FluxTransformer2DModel.

    Image size, number of conditions and schedule are not in it; they have the values of Flux.1 dev at 1024 pixels.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    require_values(values, {"patch_size": 1})
    folded = values["in_channels"]
    if values.get("out_channels") not in (None, folded):
        raise ValueError(f"out_channels is {values['out_channels']}; only in_channels = {folded} can be computed")
    if folded % FLUX_PATCH**2:
        raise ValueError(f"in_channels is {folded}; only multiples of {FLUX_PATCH**2} can be computed")
    width = values["num_attention_heads"] * values["attention_head_dim"]
    return DiTConfig(
        image_size=128,
        channels=folded // FLUX_PATCH**2,
        patch=FLUX_PATCH,
        width=width,
        heads=values["num_attention_heads"],
        ffn=MLP_RATIO * width,
        double_layers=values["num_layers"],
        single_layers=values["num_single_layers"],
        plain_layers=0,
        qk_norm=True,
        positions="rotary",
        rotary_axes=tuple(values["axes_dims_rope"]),
        conditions=512,
        condition_width=values["joint_attention_dim"],
        pooled_width=_pooled_width(values),
        distilled_guidance=FLUX_DEV_GUIDANCE if values["guidance_embeds"] else None,
        schedule=RectifiedFlowSchedule(shift=FLUX_SHIFT),
    )


def write_flux_config(config: DiTConfig) -> dict[str, Any]:
    """Writes the config.json of diffusers' FluxTransformer2DModel."""
    if config.positions != "rotary":
        raise ValueError(f"positions is {config.positions!r}; Flux.1 has rotary ones")
    if not config.pooled:
        raise ValueError("pooled_width must be above 0")
    values = {
        "_class_name": "FluxTransformer2DModel",
        "patch_size": 1,
        "in_channels": config.patch_channels,
        "out_channels": None,
        "num_layers": config.double_layers,
        "num_single_layers": config.single_layers,
        "attention_head_dim": config.head_width,
        "num_attention_heads": config.heads,
        "joint_attention_dim": config.condition_width,
        "pooled_projection_dim": config.pooled,
        "guidance_embeds": config.distilled_guidance is not None,
        "axes_dims_rope": list(config.rotary_axes),
    }
    require_round_trip(config, read_flux_config(values), (*NOT_IN_CONFIG, "pooled_width", "distilled_guidance"))
    return values


def flux_rules(config: DiTConfig) -> Rules:
    """Rules of Flux.1's transformer."""
    return {config.name: tuple(_flux_rules(config))}


def _flux_rules(config: DiTConfig) -> Iterator[Rule]:
    pixels = config.patch**2
    yield from linear_rules("x_embedder", "embed/patches", ChannelsFirst(pixels, axis=1), bias=True)
    yield from _embedding_rules(config)
    yield from _double_rules(config)
    yield from _single_rules(config)
    yield from linear_rules("norm_out.linear", "head/modulation/projection", LINEAR, bias=True)
    yield Rule("proj_out.weight", "head/leave/kernel", ChannelsFirst(pixels))
    yield Rule("proj_out.bias", "head/leave/bias", ChannelsFirst(pixels, base_layout=IDENTITY))


def _single_rules(config: DiTConfig) -> Iterator[Rule]:
    block, names = "single_transformer_blocks.{layer}", STREAMS["patches"]
    yield from linear_rules(f"{block}.norm.linear", "single/modulation/projection", LINEAR, bias=True)
    yield from _attention_rules(config, block, "single/attention", names, output=False)
    yield from linear_rules(f"{block}.proj_mlp", "single/mlp/up", LINEAR, bias=True)
    outputs = ("single/attention/output/kernel", "single/mlp/down/kernel")
    yield Rule(f"{block}.proj_out.weight", outputs, Fused(axis=1))
    yield Rule(f"{block}.proj_out.bias", "single/mlp/down/bias")


# ---------------------------------------------------------------- both


def _pooled_width(values: Mapping[str, Any]) -> int:
    """Width of the pooled conditions, which are the first channels of the mean of the conditions."""
    pooled, width = values["pooled_projection_dim"], values["joint_attention_dim"]
    if pooled > width:
        raise ValueError(f"pooled_projection_dim is {pooled}; only up to joint_attention_dim = {width} can be computed")
    return pooled


def _embedding_rules(config: DiTConfig) -> Iterator[Rule]:
    yield from linear_rules("context_embedder", "embed/conditions", LINEAR, bias=True)
    embedders = {"timestep_embedder": "time", "text_embedder": "pooled"}
    if config.distilled_guidance is not None:
        embedders["guidance_embedder"] = "guidance"
    for tensor, name in embedders.items():
        for number, layer in (("linear_1", "up"), ("linear_2", "down")):
            yield from linear_rules(f"time_text_embed.{tensor}.{number}", f"embed/{name}/{layer}", LINEAR, bias=True)


def _double_rules(config: DiTConfig) -> Iterator[Rule]:
    first = 0
    for run in config.block_runs:
        if run.stream == "double":
            for rule in _double_block_rules(config, run):
                yield Rule(rule.tensors, rule.parameters, rule.layout, first_layer=first)
            first += run.count


def _double_block_rules(config: DiTConfig, run: DiTBlockRun) -> Iterator[Rule]:
    block = "transformer_blocks.{layer}"
    for stream in ("patches", "conditions"):
        names, path = STREAMS[stream], f"{run.name}/{stream}"
        is_updated = stream == "patches" or run.updates_conditions
        yield from linear_rules(f"{block}.{names['modulation']}", f"{path}/modulation/projection", LINEAR, bias=True)
        yield from _attention_rules(config, block, f"{path}/attention", names, output=is_updated)
        if is_updated:
            for layer in ("up", "down"):
                yield from linear_rules(f"{block}.{names[layer]}", f"{path}/mlp/{layer}", LINEAR, bias=True)
    if run.has_image_attention:
        path = f"{run.name}/patches/own_attention"
        yield from _attention_rules(config, block, path, STREAMS["own_attention"], output=True)


def _attention_rules(
    config: DiTConfig, block: str, path: str, names: Mapping[str, str], *, output: bool
) -> Iterator[Rule]:
    """Rules of an attention layer, whose queries and keys may have rotary positions that pair neighbours."""
    rotary = config.positions == "rotary"

    def of_heads(heads: int, layout: TensorLayout) -> TensorLayout:
        return InterleavedRotary(heads, layout) if rotary else layout

    for name in ("query", "key"):
        tensor, parameter = f"{block}.{names[name]}", f"{path}/{name}"
        yield Rule(f"{tensor}.weight", f"{parameter}/kernel", of_heads(config.heads, LINEAR))
        yield Rule(f"{tensor}.bias", f"{parameter}/bias", of_heads(config.heads, IDENTITY))
        if config.qk_norm:
            norm = names[f"{name}_norm"]
            yield Rule(f"{block}.{norm}.weight", f"{path}/{name}_norm/scale", of_heads(1, IDENTITY))
    for name in ("value", "output") if output else ("value",):
        yield from linear_rules(f"{block}.{names[name]}", f"{path}/{name}", LINEAR, bias=True)


PUBLISHED = (
    PublishedArchitecture(
        name="SD3Transformer2DModel",
        model_types=("SD3Transformer2DModel",),
        config_type=DiTConfig,
        read_config=read_sd3_config,
        write_config=write_sd3_config,
        rules=sd3_rules,
        ignored=_ignored_positions,
        file_stem=DIFFUSERS_FILE_STEM,
    ),
    PublishedArchitecture(
        name="FluxTransformer2DModel",
        model_types=("FluxTransformer2DModel",),
        config_type=DiTConfig,
        read_config=read_flux_config,
        write_config=write_flux_config,
        rules=flux_rules,
        file_stem=DIFFUSERS_FILE_STEM,
    ),
)
