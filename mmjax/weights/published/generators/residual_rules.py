"""Residual blocks of U-Nets and autoencoders, as diffusers names them."""

from collections.abc import Iterator

from mmjax.weights.published.rules import Rule, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import CONVOLUTION, LINEAR


def residual_block_rules(theirs: str, ours: str, *, embedding: bool, skip: bool) -> Iterator[Rule]:
    """Of a ResnetBlock2D; `embedding`: of time; `skip`: it changes the width."""
    for number, name in ((1, "first"), (2, "second")):
        yield from norm_rules(f"{theirs}.norm{number}", f"{ours}/{name}_norm", bias=True)
        yield from linear_rules(f"{theirs}.conv{number}", f"{ours}/{name}", CONVOLUTION, bias=True)
    if embedding:
        yield from linear_rules(f"{theirs}.time_emb_proj", f"{ours}/embedding", LINEAR, bias=True)
    if skip:
        yield from linear_rules(f"{theirs}.conv_shortcut", f"{ours}/skip", CONVOLUTION, bias=True)
