"""The autoencoder of Stable Diffusion and AudioLDM (arXiv 2112.10752), `AutoencoderKL` of diffusers.

It is a part of a generator, so that its config.json is read as a generator's whose U-Net is not told.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from configs.architectures import AutoencoderConfig, GeneratorConfig
from mmjax.weights.published.generators.diffusers_format import DIFFUSERS_FILE_STEM, require_equal, require_fixed
from mmjax.weights.published.generators.residual_rules import residual_block_rules
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import CONVOLUTION, LINEAR

OURS = "vae/autoencoder"

# What ours computes and no other: keys of config.json with their only value.
FIXED = {
    "act_fn": "silu",
    "use_quant_conv": True,
    "use_post_quant_conv": True,
    "mid_block_add_attention": True,
    "shift_factor": None,
    "latents_mean": None,
    "latents_std": None,
}
# Names of the middle's attention in files of before 2023.
OLD = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


def read_config(values: Mapping[str, Any]) -> GeneratorConfig:
    """Of diffusers' AutoencoderKL."""
    require_fixed(values, FIXED)
    require_equal(values, ("in_channels", "out_channels"))
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
    )
    return GeneratorConfig(
        image_size=autoencoder.downsampling_factor,
        channels=values["in_channels"],
        patch=1,
        widths=(32,),
        autoencoder=autoencoder,
    )


def write_config(config: GeneratorConfig) -> dict[str, Any]:
    """For diffusers' AutoencoderKL. `sample_size` is left out: the weights are for any size."""
    of = config.autoencoder
    if of is None:
        raise ValueError(f"{config.name}.autoencoder is None; there is nothing to write")
    return {
        "_class_name": "AutoencoderKL",
        **FIXED,
        "in_channels": config.channels,
        "out_channels": config.channels,
        "latent_channels": of.latent_channels,
        "block_out_channels": list(of.widths),
        "down_block_types": ["DownEncoderBlock2D"] * len(of.widths),
        "up_block_types": ["UpDecoderBlock2D"] * len(of.widths),
        "layers_per_block": of.blocks,
        "norm_num_groups": of.groups,
        "scaling_factor": of.scaling_factor,
    }


def rules(config: GeneratorConfig) -> Rules:
    """The autoencoder's; none for a generator without one."""
    return {config.name: tuple(_rules(config.autoencoder)) if config.autoencoder else ()}


def _rules(of: AutoencoderConfig) -> Iterator[Rule]:
    last = len(of.widths) - 1
    for half, outside in (("encoder", "quant_conv"), ("decoder", "post_quant_conv")):
        ours = f"{OURS}/{half}"
        yield from linear_rules(outside, f"{ours}/quantise", CONVOLUTION, bias=True)
        yield from linear_rules(f"{half}.conv_in", f"{ours}/enter", CONVOLUTION, bias=True)
        yield from _middle(f"{half}.mid_block", f"{ours}/middle")
        yield from norm_rules(f"{half}.conv_norm_out", f"{ours}/leave_norm", bias=True)
        yield from linear_rules(f"{half}.conv_out", f"{ours}/leave", CONVOLUTION, bias=True)
    yield from _levels(of.widths, of.blocks, "encoder.down_blocks", "encoder/down")
    yield from _levels(of.widths[::-1], of.blocks + 1, "decoder.up_blocks", "decoder/up")
    for at in range(last):
        yield from linear_rules(
            f"encoder.down_blocks.{at}.downsamplers.0.conv", f"{OURS}/encoder/shrink/{at}", CONVOLUTION, bias=True
        )
        yield from linear_rules(
            f"decoder.up_blocks.{at}.upsamplers.0.conv", f"{OURS}/decoder/grow/{at}", CONVOLUTION, bias=True
        )


def _levels(widths: tuple[int, ...], blocks: int, theirs: str, ours: str) -> Iterator[Rule]:
    """Of resolutions with these widths, in the order in which they are passed."""
    for level, width in enumerate(widths):
        for block in range(blocks):
            skip = not block and level > 0 and width != widths[level - 1]
            here = f"{OURS}/{ours}/{level}/{block}"
            yield from residual_block_rules(f"{theirs}.{level}.resnets.{block}", here, embedding=False, skip=skip)


def _middle(theirs: str, ours: str) -> Iterator[Rule]:
    for number, name in ((0, "first"), (1, "second")):
        yield from residual_block_rules(f"{theirs}.resnets.{number}", f"{ours}/{name}", embedding=False, skip=False)
    attention = f"{theirs}.attentions.0"
    yield from norm_rules(f"{attention}.group_norm", f"{ours}/attention/norm", bias=True)
    for name, of in (("to_q", "query"), ("to_k", "key"), ("to_v", "value"), ("to_out.0", "output")):
        yield from linear_rules(f"{attention}.{name}", f"{ours}/attention/{of}", LINEAR, bias=True)


ALIASES = tuple(
    (f"{half}.mid_block.attentions.0.{old}.", f"{half}.mid_block.attentions.0.{new}.")
    for half in ("encoder", "decoder")
    for old, new in OLD.items()
)

PUBLISHED = (
    PublishedArchitecture(
        "AutoencoderKL",
        ("AutoencoderKL",),
        GeneratorConfig,
        read_config,
        write_config,
        rules,
        aliases=ALIASES,
        file_stem=DIFFUSERS_FILE_STEM,
    ),
)
