"""The autoencoder of Stable Diffusion, AudioLDM (arXiv 2112.10752) and Flux.1, `AutoencoderKL` of diffusers.

It belongs to a generator; its config.json is read as the configuration of a generator whose U-Net is not described.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from configs.architectures import AutoencoderConfig, DenoisingConfig, UNetConfig
from mmjax.weights.published.config_values import require_equal, require_values
from mmjax.weights.published.generators.diffusers_format import (
    DIFFUSERS_FILE_STEM,
    residual_block_rules,
)
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import CONVOLUTION, LINEAR

AUTOENCODER = "vae/autoencoder"
"""Path of the autoencoder in a generator."""

REQUIRED_VALUES = {
    "act_fn": "silu",
    "mid_block_add_attention": True,
    "latents_mean": None,
    "latents_std": None,
}
"""Keys of config.json with the only value that can be computed."""

QUANTISATION = ("use_quant_conv", "use_post_quant_conv")
"""Keys that say whether there are 1 x 1 convolutions on both sides of the latents."""

OLD_ATTENTION_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


def read_config(values: Mapping[str, Any]) -> UNetConfig:
    """Reads the config.json of diffusers' AutoencoderKL."""
    require_values(values, REQUIRED_VALUES)
    require_equal(values, ("in_channels", "out_channels"))
    quantise = [values.get(key, True) for key in QUANTISATION]
    if quantise[0] != quantise[1]:
        raise ValueError(f"{' and '.join(QUANTISATION)} are {quantise}; only equal ones can be computed")
    widths = tuple(values["block_out_channels"])
    for key, kind in (("down_block_types", "DownEncoderBlock2D"), ("up_block_types", "UpDecoderBlock2D")):
        if set(values[key]) != {kind}:
            raise ValueError(f"{key} is {values[key]!r}; only {kind!r} can be computed")
    autoencoder = AutoencoderConfig(
        latent_channels=values["latent_channels"],
        widths=widths,
        blocks=values["layers_per_block"],
        groups=values["norm_num_groups"],
        scaling_factor=float(values.get("scaling_factor", 0.18215)),
        shift=float(values.get("shift_factor") or 0.0),
        quantise=quantise[0],
    )
    return UNetConfig(
        image_size=autoencoder.downsampling_factor,
        channels=values["in_channels"],
        patch=1,
        widths=(32,),
        autoencoder=autoencoder,
    )


def write_config(config: DenoisingConfig) -> dict[str, Any]:
    """Writes the config.json of diffusers' AutoencoderKL, without `sample_size`: the weights are for any size."""
    autoencoder = config.autoencoder
    if autoencoder is None:
        raise ValueError(f"{config.name}.autoencoder is None; the generator has no autoencoder to write")
    return {
        "_class_name": "AutoencoderKL",
        **REQUIRED_VALUES,
        "in_channels": config.channels,
        "out_channels": config.channels,
        "latent_channels": autoencoder.latent_channels,
        "block_out_channels": list(autoencoder.widths),
        "down_block_types": ["DownEncoderBlock2D"] * len(autoencoder.widths),
        "up_block_types": ["UpDecoderBlock2D"] * len(autoencoder.widths),
        "layers_per_block": autoencoder.blocks,
        "norm_num_groups": autoencoder.groups,
        "scaling_factor": autoencoder.scaling_factor,
        "shift_factor": autoencoder.shift or None,
        **dict.fromkeys(QUANTISATION, autoencoder.quantise),
    }


def rules(config: DenoisingConfig) -> Rules:
    """Rules of the autoencoder; none for a generator without one."""
    return {config.name: tuple(_autoencoder_rules(config.autoencoder)) if config.autoencoder else ()}


def _autoencoder_rules(config: AutoencoderConfig) -> Iterator[Rule]:
    last = len(config.widths) - 1
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
    for level in range(last):
        yield from linear_rules(
            f"encoder.down_blocks.{level}.downsamplers.0.conv",
            f"{AUTOENCODER}/encoder/shrink/{level}",
            CONVOLUTION,
            bias=True,
        )
        yield from linear_rules(
            f"decoder.up_blocks.{level}.upsamplers.0.conv",
            f"{AUTOENCODER}/decoder/grow/{level}",
            CONVOLUTION,
            bias=True,
        )


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
    for tensor_name, name in (("to_q", "query"), ("to_k", "key"), ("to_v", "value"), ("to_out.0", "output")):
        yield from linear_rules(f"{attention}.{tensor_name}", f"{parameter}/attention/{name}", LINEAR, bias=True)


ALIASES = tuple(
    (f"{half}.mid_block.attentions.0.{old}.", f"{half}.mid_block.attentions.0.{new}.")
    for half in ("encoder", "decoder")
    for old, new in OLD_ATTENTION_NAMES.items()
)

PUBLISHED = (
    PublishedArchitecture(
        name="AutoencoderKL",
        model_types=("AutoencoderKL",),
        config_type=DenoisingConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        aliases=ALIASES,
        file_stem=DIFFUSERS_FILE_STEM,
    ),
)
