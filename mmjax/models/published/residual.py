"""Residual blocks of U-Nets and autoencoders, as diffusers names them."""

from collections.abc import Iterator

from mmjax.models.published.layouts import CONVOLUTION, LINEAR
from mmjax.models.published.rules import Rule, linear, norm


def residual_rules(theirs: str, ours: str, *, embedding: bool, skip: bool) -> Iterator[Rule]:
    """Of a ResnetBlock2D; `embedding`: of time; `skip`: it changes the width."""
    for number, name in ((1, "first"), (2, "second")):
        yield from norm(f"{theirs}.norm{number}", f"{ours}/{name}_norm", bias=True)
        yield from linear(f"{theirs}.conv{number}", f"{ours}/{name}", CONVOLUTION, bias=True)
    if embedding:
        yield from linear(f"{theirs}.time_emb_proj", f"{ours}/embedding", LINEAR, bias=True)
    if skip:
        yield from linear(f"{theirs}.conv_shortcut", f"{ours}/skip", CONVOLUTION, bias=True)
