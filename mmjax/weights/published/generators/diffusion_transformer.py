"""Transformers of Stable Diffusion 3 and 3.5 (arXiv 2403.03206) and of Flux.1, in the format of diffusers.

`DiTTransformer2DModel` is left out: every block of it has an embedding of class labels, which a generator that is
conditioned on hidden states has no use for.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from configs.architectures import DiTConfig, RectifiedFlowSchedule
from configs.modules.diffusion_transformer import DiTBlockRun
from mmjax.weights.published.channel_orders import ChannelsFirst, InterleavedRotary
from mmjax.weights.published.config_values import require_values
from mmjax.weights.published.generators.diffusers_format import CHANNELS, diffusers_architecture
from mmjax.weights.published.key_table import Fields, Key, Keys, Values
from mmjax.weights.published.rules import Rule, linear_rules
from mmjax.weights.published.tensor_layouts import IDENTITY, LINEAR, Fused, PatchConvolution, TensorLayout

MLP_RATIO = 4
FLUX_PATCH = 2  # side of a patch of latents, which diffusers' pipeline folds into channels before the transformer
FLUX_DEV_GUIDANCE = 3.5
FLUX_SHIFT = math.exp(1.15)  # shift of Flux.1 dev for images of 1024 pixels

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


# ---------------------------------------------------------------- keys of both


def _width(values: Values) -> int:
    return values["num_attention_heads"] * values["attention_head_dim"]


def _read_pooled_width(values: Values) -> dict[str, Any]:
    """Width of the pooled conditions, which are the first channels of the mean of the conditions."""
    pooled, width = values["pooled_projection_dim"], values["joint_attention_dim"]
    if pooled > width:
        raise ValueError(f"pooled_projection_dim is {pooled}; only up to joint_attention_dim = {width} can be computed")
    return {"pooled_width": pooled}


HEADS_AND_CONDITIONS = (
    Keys(
        lambda values: {"width": _width(values), "ffn": MLP_RATIO * _width(values)},
        lambda config: {"attention_head_dim": config.head_width},
    ),
    Key("num_attention_heads", "heads"),
    Key("joint_attention_dim", "condition_width"),
    Keys(_read_pooled_width, lambda config: {"pooled_projection_dim": config.pooled}),
    Fields({"plain_layers": 0}),
)


# ---------------------------------------------------------------- Stable Diffusion 3


def _read_sizes(values: Values) -> dict[str, Any]:
    size, channels = values["sample_size"], values["in_channels"]
    require_values(values, {"caption_projection_dim": _width(values), "out_channels": channels})
    return {"image_size": size, "position_base": size // values["patch_size"], "channels": channels}


def _write_sizes(config: DiTConfig) -> dict[str, Any]:
    if not config.position_base or not config.double_layers or not config.pooled:
        raise ValueError("position_base, double_layers and pooled_width must be above 0")
    sizes = {"sample_size": config.position_base * config.patch, "caption_projection_dim": config.width}
    return {**sizes, **dict.fromkeys(CHANNELS, config.latent_shape[-1])}


def _read_dual_layers(layers: Sequence[int] | None) -> int:
    layers = tuple(layers or ())
    if layers != tuple(range(len(layers))):
        raise ValueError(f"dual_attention_layers is {layers}; only the first layers can be computed")
    return len(layers)


def _read_qk_norm(norm: str | None) -> bool:
    if norm not in (None, "rms_norm"):
        raise ValueError(f"qk_norm is {norm!r}; only None and 'rms_norm' can be computed")
    return norm is not None


SD3_KEYS = (
    Keys(_read_sizes, _write_sizes),
    Key("patch_size", "patch"),
    Key("num_layers", "double_layers"),
    *HEADS_AND_CONDITIONS,
    Key("pos_embed_max_size", "position_grid"),
    Key("dual_attention_layers", "image_attention_layers", None, _read_dual_layers, lambda count: list(range(count))),
    Key("qk_norm", "qk_norm", None, _read_qk_norm, lambda norm: "rms_norm" if norm else None),
    # Not in config.json: as in Stable Diffusion 3.
    Fields({"conditions": 333, "schedule": RectifiedFlowSchedule(shift=3.0)}),
)


def sd3_rules(config: DiTConfig) -> Iterator[Rule]:
    """Rules of Stable Diffusion 3's transformer."""
    yield Rule("pos_embed.proj.weight", "embed/patches/kernel", PatchConvolution((config.patch,) * 2))
    yield Rule("pos_embed.proj.bias", "embed/patches/bias")
    yield from _shared_rules(config)
    yield from linear_rules("proj_out", "head/leave", LINEAR, bias=True)


# ---------------------------------------------------------------- Flux.1


def _read_flux(values: Values) -> dict[str, Any]:
    require_values(values, {"patch_size": 1})
    folded = values["in_channels"]
    if values.get("out_channels") not in (None, folded):
        raise ValueError(f"out_channels is {values['out_channels']}; only in_channels = {folded} can be computed")
    if folded % FLUX_PATCH**2:
        raise ValueError(f"in_channels is {folded}; only multiples of {FLUX_PATCH**2} can be computed")
    return {"channels": folded // FLUX_PATCH**2}


def _write_flux(config: DiTConfig) -> dict[str, Any]:
    if config.positions != "rotary":
        raise ValueError(f"positions is {config.positions!r}; Flux.1 has rotary ones")
    if not config.pooled:
        raise ValueError("pooled_width must be above 0")
    return {"patch_size": 1, "in_channels": config.patch_channels, "out_channels": None}


FLUX_KEYS = (
    Keys(_read_flux, _write_flux),
    Key("num_layers", "double_layers"),
    Key("num_single_layers", "single_layers"),
    *HEADS_AND_CONDITIONS,
    Keys(
        lambda values: {"distilled_guidance": FLUX_DEV_GUIDANCE if values["guidance_embeds"] else None},
        lambda config: {"guidance_embeds": config.distilled_guidance is not None},
    ),
    Key("axes_dims_rope", "rotary_axes", to_field=tuple, to_value=list),
    Fields({"patch": FLUX_PATCH, "qk_norm": True, "positions": "rotary"}),
    # Not in config.json: as in Flux.1 dev at 1024 pixels.
    Fields({"image_size": 128, "conditions": 512, "schedule": RectifiedFlowSchedule(shift=FLUX_SHIFT)}),
)


def flux_rules(config: DiTConfig) -> Iterator[Rule]:
    """Rules of Flux.1's transformer."""
    pixels = config.patch**2
    yield from linear_rules("x_embedder", "embed/patches", ChannelsFirst(pixels, axis=1), bias=True)
    yield from _shared_rules(config)
    yield from _single_rules(config)
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


# ---------------------------------------------------------------- rules of both


def _shared_rules(config: DiTConfig) -> Iterator[Rule]:
    """Rules of the embeddings of conditions and time, of the double blocks, and of the head's modulation."""
    yield from linear_rules("norm_out.linear", "head/modulation/projection", LINEAR, bias=True)
    yield from linear_rules("context_embedder", "embed/conditions", LINEAR, bias=True)
    embedders = {"timestep_embedder": "time", "text_embedder": "pooled"}
    if config.distilled_guidance is not None:
        embedders["guidance_embedder"] = "guidance"
    for tensor, name in embedders.items():
        for number, layer in (("linear_1", "up"), ("linear_2", "down")):
            yield from linear_rules(f"time_text_embed.{tensor}.{number}", f"embed/{name}/{layer}", LINEAR, bias=True)
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
    diffusers_architecture(
        "SD3Transformer2DModel",
        {"": DiTConfig},
        SD3_KEYS,
        sd3_rules,
        undescribed=("pooled_width",),
        ignored=lambda config: ("pos_embed.pos_embed",),  # the table of sinusoidal positions, which are computed here
    ),
    diffusers_architecture(
        "FluxTransformer2DModel",
        {"": DiTConfig},
        FLUX_KEYS,
        flux_rules,
        undescribed=("pooled_width", "distilled_guidance"),
    ),
)
