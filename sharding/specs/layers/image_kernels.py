"""Kernels over feature maps of an image, counted per image, of which U-Nets and autoencoders consist."""

import dataclasses
from collections.abc import Iterable, Iterator

from configs.modules.generator import GeneratorConfig
from sharding.specs.layers.layer import (
    Kernel,
    LayerSpec,
    Number,
    PerLoad,
    SavedActivations,
    SplitSide,
    matmul_of_rows,
    saved_by_policy,
)


@dataclasses.dataclass(frozen=True)
class ImageKernel:
    """A kernel with its parameters and the activations that it saves.

    Attributes:
        kernel: The kernel; FLOPs and activations are per image.
        parameters: Elements of parameters that tensor ranks divide.
        replicated: Elements of parameters that each tensor rank holds.
        saved: Elements saved for the backward, per image.
    """

    kernel: Kernel
    parameters: int = 0
    replicated: int = 0
    saved: Number = 0


def linear(
    name: str,
    inputs: int,
    outputs: int,
    positions: int,
    *,
    bias: bool = False,
    split_by_rows: bool = False,
    split: bool = True,
) -> ImageKernel:
    """A matmul over `positions` positions per image; split by rows, each tensor rank holds the bias."""
    side: SplitSide = "rows" if split_by_rows else "columns"
    kernel = matmul_of_rows(name, inputs, outputs, PerLoad(items=positions), split=split, split_by=side)
    return _with_parameters(kernel, outputs if bias else 0, split_by_rows, inputs * positions)


def convolution(
    name: str, inputs: int, outputs: int, area: int, *, taps: int = 9, split_by_rows: bool = False, split: bool = True
) -> ImageKernel:
    """A convolution with bias; `area` is the number of pixels of its output."""
    weights = taps * inputs * outputs
    kernel = Kernel(
        name,
        "convolution",
        flops=PerLoad(items=2 * weights * area),
        activations=PerLoad(items=(inputs + outputs) * area),
        weights=weights,
        split=split,
        inner=taps * inputs,
        outer=outputs,
        split_by="rows" if split_by_rows else "columns",
    )
    return _with_parameters(kernel, outputs, split_by_rows, inputs * area)


def elementwise(name: str, elements: int) -> ImageKernel:
    """A kernel without arithmetic that counts, which reads and writes so many elements per image."""
    return ImageKernel(Kernel(name, "memory", activations=PerLoad(items=elements), split=False))


def group_norm(name: str, width: int, area: int, *, split: bool = False) -> ImageKernel:
    """A GroupNorm over `area` pixels, which reads a map for its statistics, and again to normalize it."""
    return norm(name, width, area, split=split, passes=3)


def norm(name: str, width: int, area: int, *, split: bool = False, passes: int = 2) -> ImageKernel:
    """A norm with scale and bias over `area` pixels; `passes` counts how often it reads or writes the map."""
    kernel = Kernel(name, "memory", activations=PerLoad(items=passes * width * area), split=split)
    return ImageKernel(kernel, 2 * width if split else 0, 0 if split else 2 * width, width * area)


def attention(name: str, width: int, head_width: int, queries: int, keys: int, *, split: bool = True) -> ImageKernel:
    """Attention scores and the weighted sums of values, without the projections."""
    flops, moved = 4 * width * queries * keys, 2 * width * (queries + keys)
    kernel = Kernel(name, "attention", PerLoad(items=flops), PerLoad(items=moved), split=split, head_width=head_width)
    return ImageKernel(kernel, saved=2 * width * (queries + keys))


def residual_block(inputs: int, outputs: int, area: int, time_width: int | None = None) -> Iterator[ImageKernel]:
    """The kernels of `mmjax.models.modalities.generators.unet_blocks.ResidualBlock`.

    Args:
        inputs: Channels of its input.
        outputs: Channels of its output.
        area: Pixels of the feature map.
        time_width: Width of the time embedding; None without one.
    """
    yield group_norm("first_norm", inputs, area)
    yield convolution("first", inputs, outputs, area)
    if time_width is not None:
        yield linear("time_embedding", time_width, outputs, 1, bias=True)
    yield group_norm("second_norm", outputs, area, split=True)
    yield convolution("second", outputs, outputs, area, split_by_rows=True)
    if inputs != outputs:
        yield convolution("skip", inputs, outputs, area, taps=1, split=False)
    yield elementwise("residual", 3 * outputs * area)


def _with_parameters(kernel: Kernel, bias: int, split_by_rows: bool, saved: Number) -> ImageKernel:
    if not kernel.split:
        return ImageKernel(kernel, 0, kernel.weights + bias, saved)
    if split_by_rows:
        return ImageKernel(kernel, kernel.weights, bias, saved)
    return ImageKernel(kernel, kernel.weights + bias, 0, saved)


def image_layer(
    config: GeneratorConfig, name: str, kernels: Iterable[ImageKernel], inputs: int, outputs: int = 0
) -> LayerSpec:
    """A layer of a generator whose kernels are counted per image.

    Args:
        config: The generator.
        name: Name of its piece.
        kernels: The kernels.
        inputs: Elements that enter it for each image: with full recomputation they alone are saved.
        outputs: Elements that it hands on for each image; 0 where it ends in the loss.
    """
    steps = tuple(kernels)
    saved = SavedActivations(PerLoad(items=sum(step.saved for step in steps)))
    return LayerSpec(
        name=name,
        part=config.name,
        kernels=tuple(step.kernel for step in steps),
        parameters=sum(step.parameters for step in steps),
        replicated_parameters=sum(step.replicated for step in steps),
        saved=saved_by_policy(saved, SavedActivations(replicated=PerLoad(items=inputs))),
        output_elements=PerLoad(items=outputs),
        sequence_parallel=False,
    )
