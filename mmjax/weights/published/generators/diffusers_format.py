"""Common code for files of diffusers: keys of config.json, residual blocks."""

from collections.abc import Iterator, Mapping
from typing import Any

from mmjax.weights.published.rules import Rule, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import CONVOLUTION, LINEAR

DIFFUSERS_FILE_STEM = "diffusion_pytorch_model"


def heads_per_level(values: Mapping[str, Any], levels: int) -> tuple[int, ...]:
    """Reads the attention heads of each level, which U-Nets of diffusers call `attention_head_dim` by mistake."""
    heads = values.get("attention_head_dim", 8)
    return (heads,) * levels if isinstance(heads, int) else tuple(heads)


def residual_block_rules(tensor: str, parameter: str, *, embedding: bool, skip: bool) -> Iterator[Rule]:
    """Rules of a ResnetBlock2D.

    Args:
        tensor: Prefix of its tensors' names.
        parameter: Path of the block here.
        embedding: Whether it has an embedding of time.
        skip: Whether it changes the width, so that its skip path has a convolution.
    """
    for number, name in ((1, "first"), (2, "second")):
        yield from norm_rules(f"{tensor}.norm{number}", f"{parameter}/{name}_norm", bias=True)
        yield from linear_rules(f"{tensor}.conv{number}", f"{parameter}/{name}", CONVOLUTION, bias=True)
    if embedding:
        yield from linear_rules(f"{tensor}.time_emb_proj", f"{parameter}/embedding", LINEAR, bias=True)
    if skip:
        yield from linear_rules(f"{tensor}.conv_shortcut", f"{parameter}/skip", CONVOLUTION, bias=True)
