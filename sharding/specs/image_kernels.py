"""Kernels over maps of an image, counted per image: what U-Nets and autoencoders are made of."""

import dataclasses
from collections.abc import Iterator

from sharding.specs.layer import Kernel, Number, PerLoad


@dataclasses.dataclass(frozen=True)
class ImageKernel:
    """One kernel; parameters that ranks divide and that each holds; numbers kept for the backward."""

    kernel: Kernel
    parameters: int = 0
    replicated: int = 0
    saved: Number = 0


def linear(
    name: str, inputs: int, outputs: int, rows_of: int, *, bias: bool = False, rows: bool = False, split: bool = True
) -> ImageKernel:
    """A matmul over so many rows an image; `rows`: split by rows, so that each rank holds the bias."""
    work, moved = 2 * inputs * outputs * rows_of, (inputs + outputs) * rows_of
    kernel = Kernel(name, "matmul", PerLoad(items=work), PerLoad(items=moved), inputs * outputs, split)
    return _held(kernel, inputs * outputs, outputs if bias else 0, split, rows, inputs * rows_of)


def convolution(
    name: str, inputs: int, outputs: int, area: int, *, taps: int = 9, rows: bool = False, split: bool = True
) -> ImageKernel:
    """A convolution with bias whose output has so many pixels."""
    weights = taps * inputs * outputs
    kernel = Kernel(
        name, "convolution", PerLoad(items=2 * weights * area), PerLoad(items=(inputs + outputs) * area), weights, split
    )
    return _held(kernel, weights, outputs, split, rows, inputs * area)


def norm(name: str, width: int, area: int, *, split: bool = False) -> ImageKernel:
    """A norm with scale and bias over so many pixels."""
    kernel = Kernel(name, "memory", activations=PerLoad(items=2 * width * area), split=split)
    return ImageKernel(kernel, 2 * width if split else 0, 0 if split else 2 * width, width * area)


def attention(name: str, width: int, queries: int, keys: int, *, split: bool = True) -> ImageKernel:
    """Scores and their sums over values, without the projections."""
    work, moved = 4 * width * queries * keys, 2 * width * (queries + keys)
    kernel = Kernel(name, "attention", PerLoad(items=work), PerLoad(items=moved), split=split)
    return ImageKernel(kernel, saved=2 * width * (queries + keys))


def residual_block(inputs: int, outputs: int, area: int, embedding: int | None = None) -> Iterator[ImageKernel]:
    """Of `mmjax.models.modalities.unet_blocks.ResidualBlock`; `embedding` is the width of that of time, if there is one."""
    yield norm("first_norm", inputs, area)
    yield convolution("first", inputs, outputs, area)
    if embedding is not None:
        yield linear("embedding", embedding, outputs, 1, bias=True)
    yield norm("second_norm", outputs, area, split=True)
    yield convolution("second", outputs, outputs, area, rows=True)
    if inputs != outputs:
        yield convolution("skip", inputs, outputs, area, taps=1, split=False)


def _held(kernel: Kernel, weights: int, bias: int, split: bool, rows: bool, kept: Number) -> ImageKernel:
    if not split:
        return ImageKernel(kernel, 0, weights + bias, kept)
    return ImageKernel(kernel, weights + (0 if rows else bias), bias if rows else 0, kept)
