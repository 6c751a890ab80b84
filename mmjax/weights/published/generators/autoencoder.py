"""The autoencoder of Stable Diffusion, AudioLDM (arXiv 2112.10752) and Flux.1, `AutoencoderKL` of diffusers.

It belongs to a generator; its config.json is read as the configuration of a generator whose U-Net is not described.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from configs.architectures import AutoencoderConfig, DenoisingConfig, UNetConfig
from mmjax.weights.published.generators.diffusers_format import (
    CHANNELS,
    attention_rules,
    diffusers_architecture,
    only,
    resampling_rules,
    residual_block_rules,
)
from mmjax.weights.published.key_table import EqualKeys, Fields, Key, Keys, Values
from mmjax.weights.published.rules import Rule, linear_rules, norm_rules, require_round_trip
from mmjax.weights.published.tensor_layouts import CONVOLUTION

AUTOENCODER = "vae/autoencoder"
"""Path of the autoencoder in a generator."""

REQUIRED_VALUES = {
    "act_fn": "silu",
    "mid_block_add_attention": True,
    "latents_mean": None,
    "latents_std": None,
}
"""Keys of config.json with the only value that can be computed."""

BLOCK_TYPES = {"down_block_types": "DownEncoderBlock2D", "up_block_types": "UpDecoderBlock2D"}
OLD_ATTENTION_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


def _require_autoencoder(config: DenoisingConfig) -> dict[str, Any]:
    if config.autoencoder is None:
        raise ValueError(f"{config.name}.autoencoder is None; the generator has no autoencoder to write")
    return {}


def _read_widths(values: Values) -> dict[str, Any]:
    """Reads the widths; the generator has the size of an image of one latent."""
    widths = tuple(values["block_out_channels"])
    for key, kind in BLOCK_TYPES.items():
        if set(values[key]) != {kind}:
            raise ValueError(f"{key} is {values[key]!r}; only {kind!r} can be computed")
    return {"autoencoder.widths": widths, "image_size": 2 ** (len(widths) - 1)}


def _write_widths(widths: tuple[int, ...]) -> dict[str, Any]:
    return {"block_out_channels": list(widths), **{key: [kind] * len(widths) for key, kind in BLOCK_TYPES.items()}}


KEYS = (
    Keys(write=_require_autoencoder),
    *only(REQUIRED_VALUES),
    EqualKeys(CHANNELS, "channels"),
    Key("latent_channels", "autoencoder.latent_channels"),
    Keys(_read_widths, lambda config: _write_widths(config.autoencoder.widths)),
    Key("layers_per_block", "autoencoder.blocks"),
    Key("norm_num_groups", "autoencoder.groups"),
    Key("scaling_factor", "autoencoder.scaling_factor", 0.18215, float),
    Key("shift_factor", "autoencoder.shift", None, lambda shift: float(shift or 0.0), lambda shift: shift or None),
    EqualKeys(("use_quant_conv", "use_post_quant_conv"), "autoencoder.quantise", True),
    Fields({"patch": 1, "widths": (32,)}),
)
"""Keys besides `sample_size`, which is not written: weights are for any size."""


def rules(generator: DenoisingConfig) -> Iterator[Rule]:
    """Rules of the autoencoder; none for a generator without one."""
    config = generator.autoencoder
    if config is None:
        return
    for half, quantise in (("encoder", "quant_conv"), ("decoder", "post_quant_conv")):
        path = f"{AUTOENCODER}/{half}"
        if config.quantise:
            yield from linear_rules(quantise, f"{path}/quantise", CONVOLUTION, bias=True)
        yield from linear_rules(f"{half}.conv_in", f"{path}/enter", CONVOLUTION, bias=True)
        yield from _middle_block_rules(f"{half}.mid_block", f"{path}/middle")
        yield from norm_rules(f"{half}.conv_norm_out", f"{path}/leave_norm", bias=True)
        yield from linear_rules(f"{half}.conv_out", f"{path}/leave", CONVOLUTION, bias=True)
    yield from _level_rules(config.widths, config.blocks, "encoder.down_blocks", "encoder/down")
    yield from _level_rules(config.widths[::-1], config.blocks + 1, "decoder.up_blocks", "decoder/up")
    halves = (("encoder.down_blocks", f"{AUTOENCODER}/encoder"), ("decoder.up_blocks", f"{AUTOENCODER}/decoder"))
    yield from resampling_rules(len(config.widths), *halves)


def _level_rules(widths: tuple[int, ...], blocks: int, tensor: str, parameter: str) -> Iterator[Rule]:
    """Rules of levels with these widths, in the order in which they are computed."""
    for level, width in enumerate(widths):
        for block in range(blocks):
            skip = not block and level > 0 and width != widths[level - 1]
            path = f"{AUTOENCODER}/{parameter}/{level}/{block}"
            yield from residual_block_rules(f"{tensor}.{level}.resnets.{block}", path, embedding=False, skip=skip)


def _middle_block_rules(tensor: str, parameter: str) -> Iterator[Rule]:
    for number, name in ((0, "first"), (1, "second")):
        yield from residual_block_rules(
            f"{tensor}.resnets.{number}", f"{parameter}/{name}", embedding=False, skip=False
        )
    attention = f"{tensor}.attentions.0"
    yield from norm_rules(f"{attention}.group_norm", f"{parameter}/attention/norm", bias=True)
    yield from attention_rules(attention, f"{parameter}/attention", bias=True)


ALIASES = tuple(
    (f"{half}.mid_block.attentions.0.{old}.", f"{half}.mid_block.attentions.0.{new}.")
    for half in ("encoder", "decoder")
    for old, new in OLD_ATTENTION_NAMES.items()
)

ARCHITECTURE = diffusers_architecture(
    "AutoencoderKL",
    {"": UNetConfig, "autoencoder": AutoencoderConfig},
    KEYS,
    rules,
    require_same=lambda config, read_back: require_round_trip(config.autoencoder, read_back.autoencoder),
    aliases=ALIASES,
)
PUBLISHED = (dataclasses.replace(ARCHITECTURE, config_type=DenoisingConfig),)
"""The autoencoder of any generator that denoises."""
