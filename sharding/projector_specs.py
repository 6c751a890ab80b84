"""Projectors between encoders and the backbone as layers."""

import functools
from typing import Any

from configs.architectures import AudioConfig, BackboneConfig, VisionConfig
from configs.projectors import MLPProjectorConfig, ResamplerConfig
from sharding.layer_spec import Amount, Kept, Kernel, LayerSpec, gather, matmul, memory, same_kept, scatter

EncoderConfig = VisionConfig | AudioConfig


@functools.singledispatch
def projector_layer(config: Any, encoder: EncoderConfig, backbone: BackboneConfig) -> LayerSpec:
    """The layer of a projector. A new kind registers its own, by the type of its configuration."""
    raise TypeError(f"no layer is known of a {type(config).__name__}; register one with projector_layer")


@projector_layer.register
def _(config: MLPProjectorConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> LayerSpec:
    share, merged, out = 1 / encoder.merged, encoder.merged * encoder.width, backbone.width
    kernels = (
        *((memory("norm", 2 * encoder.width, split=False),) if config.norm else ()),
        gather(encoder.width),
        matmul("up", merged, out, share),
        memory("activation", 2 * out * share),
        matmul("down", out, out, share),
        scatter(out * share),
    )
    inputs = Kept(whole=Amount(encoder.width))
    kept = Kept(Amount(2 * out * share), Amount(encoder.width * (1 + config.norm)))
    parameters = merged * out + out + out * out
    whole = out + 2 * merged * config.norm
    return _layer(encoder, kernels, parameters, whole, same_kept(kept, inputs), out * share)


@projector_layer.register
def _(config: ResamplerConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> LayerSpec:
    share, width = 1 / encoder.merged, backbone.width
    kernels = (
        matmul("enter", encoder.width, width, split=False),
        memory("norms", 4 * width + 2 * width * share, split=False),
        gather(width * (1 + share)),
        matmul("query", width, width, share),
        matmul("key_value", width, 2 * width),
        Kernel("attention", "attention", Amount(squares=4 * width * share), Amount(2 * width + 2 * width * share)),
        matmul("output", width, width, share),
        scatter(width * share),
        memory("leave_norm", 2 * width * share, split=False),
        matmul("leave", width, width, share, split=False),
    )
    inputs = Kept(whole=Amount(encoder.width))
    kept = Kept(Amount(2 * width + 2 * width * share), Amount(encoder.width + 3 * width + 4 * width * share))
    parameters = 4 * width * width + 3 * width
    whole = encoder.width * width + 6 * width + width + width + width * width + width
    return _layer(encoder, kernels, parameters, whole, same_kept(kept, inputs), width * share)


@functools.singledispatch
def projector_splits(config: Any) -> tuple[tuple[str, int], ...]:
    """What tensor parallelism divides in a projector beside widths: (what it is, its size); nothing by default."""
    return ()


@projector_splits.register
def _(config: ResamplerConfig) -> tuple[tuple[str, int], ...]:
    return (("projector heads", config.heads),)


def _layer(
    encoder: EncoderConfig,
    kernels: tuple[Kernel, ...],
    parameters: int,
    whole: int,
    kept: dict[str, Kept],
    output: float,
) -> LayerSpec:
    part = f"{encoder.name}_projector"
    return LayerSpec("projector", part, kernels, parameters, whole, kept, Amount(output), by_position=False)
