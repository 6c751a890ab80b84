"""The generator as one layer, from the dataclass that its U-Net is built from: everything is counted per image."""

import dataclasses
from collections.abc import Iterator

from configs.architectures import BackboneConfig, GeneratorConfig
from sharding.layer_spec import NOTHING, Amount, Kept, Kernel, LayerSpec, Number


@dataclasses.dataclass(frozen=True)
class _Step:
    """One kernel of the U-Net; parameters that ranks divide and that each holds; numbers kept for the backward."""

    kernel: Kernel
    parameters: int = 0
    whole: int = 0
    kept: Number = 0


def generator_layers(
    config: GeneratorConfig, backbone: BackboneConfig
) -> tuple[tuple[LayerSpec, ...], LayerSpec, tuple[LayerSpec, ...]]:
    """The output projector, the U-Net with its loss, and nothing after."""
    return (_projector(config, backbone),), _unet(config), ()


def _projector(config: GeneratorConfig, backbone: BackboneConfig) -> LayerSpec:
    width, hidden, out, count = backbone.width, 2 * config.condition_width, config.condition_width, config.conditions

    def matmul(name: str, inputs: int, outputs: int) -> Kernel:
        work, moved = 2 * inputs * outputs * count, (inputs + outputs) * count
        return Kernel(name, "matmul", Amount(items=work), Amount(items=moved), inputs * outputs)

    norm = Kernel("norm", "memory", elements=Amount(items=2 * width * count), split=False)
    inputs = Kept(whole=Amount(items=width * count))
    kept = Kept(Amount(items=2 * hidden * count), Amount(items=2 * width * count))
    return LayerSpec(
        "projector",
        f"{config.name}_projector",
        (norm, matmul("up", width, hidden), matmul("down", hidden, out)),
        width * hidden + hidden + hidden * out,
        2 * width + out,
        {"none": kept, "selective": kept, "full": inputs},
        Amount(items=out * count),
    )


def _unet(config: GeneratorConfig) -> LayerSpec:
    steps = tuple(_steps(config))
    folded = config.channels * config.image_size**2
    kept = Kept(Amount(items=sum(step.kept for step in steps)))
    inputs = Kept(whole=Amount(items=folded + config.conditions * config.condition_width))
    return LayerSpec(
        "unet",
        config.name,
        tuple(step.kernel for step in steps),
        sum(step.parameters for step in steps),
        sum(step.whole for step in steps),
        {"none": kept, "selective": kept, "full": inputs},
        NOTHING,
    )


def _steps(config: GeneratorConfig) -> Iterator[_Step]:
    """Kernels in the order of `mmjax.models.unet.UNet`."""
    widths, hidden, folded = config.widths, 4 * config.widths[0], config.channels * config.patch**2
    side = config.image_size // config.patch
    yield _linear("time_up", widths[0], hidden, 1, bias=True)
    yield _linear("time_down", hidden, hidden, 1, bias=True, rows=True)
    yield _linear("condition", config.condition_width, hidden, 1, split=False)
    yield _convolution("enter", folded, widths[0], side, split=False)
    kept, width = [widths[0]], widths[0]
    for level, level_width in enumerate(widths):
        if level:
            side //= 2
            yield _convolution("shrink", width, width, side, split=False)
            kept.append(width)
        for _ in range(config.blocks):
            yield from _block(config, width, level_width, side, level in config.attentions)
            width = level_width
            kept.append(width)
    yield from _block(config, width, width, side, True)
    yield from _block(config, width, width, side, False)
    for level in reversed(range(len(widths))):
        for _ in range(config.blocks + 1):
            yield from _block(config, width + kept.pop(), widths[level], side, level in config.attentions)
            width = widths[level]
        if level:
            side *= 2
            yield _convolution("grow", width, width, side, split=False)
    yield _norm("leave_norm", widths[0], side * side)
    yield _convolution("leave", widths[0], folded, side, split=False)


def _block(config: GeneratorConfig, inputs: int, outputs: int, side: int, attends: bool) -> Iterator[_Step]:
    """A residual block, and a transformer block behind it where the resolution has attention."""
    area = side * side
    yield _norm("first_norm", inputs, area)
    yield _convolution("first", inputs, outputs, side)
    yield _linear("embedding", 4 * config.widths[0], outputs, 1)
    yield _norm("second_norm", outputs, area, split=True)
    yield _convolution("second", outputs, outputs, side, rows=True)
    if inputs != outputs:
        yield _convolution("skip", inputs, outputs, side, taps=1, split=False)
    if attends:
        yield from _transformer(config, outputs, area)


def _transformer(config: GeneratorConfig, width: int, area: int) -> Iterator[_Step]:
    conditions, count = config.condition_width, config.conditions
    yield _norm("norm", width, area)
    yield _linear("enter", width, width, area, bias=True, split=False)
    yield _norm("self_norm", width, area)
    yield _linear("query_key_value", width, 3 * width, area)
    yield _attention("self_attention", width, area, area)
    yield _linear("output", width, width, area, rows=True)
    yield _norm("cross_norm", width, area)
    yield _linear("query", width, width, area)
    yield _linear("key_value", conditions, 2 * width, count)
    yield _attention("cross_attention", width, area, count)
    yield _linear("output", width, width, area, rows=True)
    yield _norm("mlp_norm", width, area)
    yield _linear("gate_up", width, 8 * width, area, bias=True)
    yield _linear("down", 4 * width, width, area, bias=True, rows=True)
    yield _linear("leave", width, width, area, bias=True, split=False)


def _linear(
    name: str, inputs: int, outputs: int, rows_of: int, *, bias: bool = False, rows: bool = False, split: bool = True
) -> _Step:
    """A matmul over so many rows an image; `rows`: split by rows, so that each rank holds the bias."""
    work, moved = 2 * inputs * outputs * rows_of, (inputs + outputs) * rows_of
    kernel = Kernel(name, "matmul", Amount(items=work), Amount(items=moved), inputs * outputs, split)
    return _held(kernel, inputs * outputs, outputs if bias else 0, split, rows, inputs * rows_of)


def _convolution(
    name: str, inputs: int, outputs: int, side: int, *, taps: int = 9, rows: bool = False, split: bool = True
) -> _Step:
    """A convolution with bias whose output has this side."""
    area, weights = side * side, taps * inputs * outputs
    kernel = Kernel(
        name, "convolution", Amount(items=2 * weights * area), Amount(items=(inputs + outputs) * area), weights, split
    )
    return _held(kernel, weights, outputs, split, rows, inputs * area)


def _held(kernel: Kernel, weights: int, bias: int, split: bool, rows: bool, kept: Number) -> _Step:
    if not split:
        return _Step(kernel, 0, weights + bias, kept)
    return _Step(kernel, weights + (0 if rows else bias), bias if rows else 0, kept)


def _norm(name: str, width: int, area: int, *, split: bool = False) -> _Step:
    kernel = Kernel(name, "memory", elements=Amount(items=2 * width * area), split=split)
    return _Step(kernel, 2 * width if split else 0, 0 if split else 2 * width, width * area)


def _attention(name: str, width: int, queries: int, keys: int) -> _Step:
    work, moved = 4 * width * queries * keys, 2 * width * (queries + keys)
    return _Step(Kernel(name, "attention", Amount(items=work), Amount(items=moved)), kept=2 * width * (queries + keys))
