"""Projectors between encoders and the backbone as layers."""

import functools
from typing import Any

from configs.architectures import AudioConfig, BackboneConfig, VisionConfig
from configs.projectors import MLPProjectorConfig, ResamplerConfig
from sharding.specs.layer import (
    Kernel,
    LayerSpec,
    PerLoad,
    SavedActivations,
    all_gather,
    matmul,
    memory_bound,
    reduce_scatter,
    saved_by_policy,
)

EncoderConfig = VisionConfig | AudioConfig


@functools.singledispatch
def projector_layer(config: Any, encoder: EncoderConfig, backbone: BackboneConfig) -> LayerSpec:
    """The layer of a projector. A new kind registers its own, by the type of its configuration."""
    raise TypeError(f"no layer is known of a {type(config).__name__}; register one with projector_layer")


@projector_layer.register
def _(config: MLPProjectorConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> LayerSpec:
    share, merged, out = 1 / encoder.positions_per_token, encoder.positions_per_token * encoder.width, backbone.width
    kernels = (
        *((memory_bound("norm", 2 * encoder.width, split=False),) if config.norm else ()),
        all_gather(encoder.width),
        matmul("up", merged, out, share),
        memory_bound("activation", 2 * out * share),
        matmul("down", out, out, share),
        reduce_scatter(out * share),
    )
    inputs = SavedActivations(replicated=PerLoad(encoder.width))
    kept = SavedActivations(PerLoad(2 * out * share), PerLoad(encoder.width * (1 + config.norm)))
    parameters = merged * out + out + out * out
    whole = out + 2 * merged * config.norm
    return _layer(encoder, kernels, parameters, whole, saved_by_policy(kept, inputs), out * share)


@projector_layer.register
def _(config: ResamplerConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> LayerSpec:
    share, width = 1 / encoder.positions_per_token, backbone.width
    kernels = (
        matmul("enter", encoder.width, width, split=False),
        memory_bound("norms", 4 * width + 2 * width * share, split=False),
        all_gather(width * (1 + share)),
        matmul("query", width, width, share),
        matmul("key_value", width, 2 * width),
        Kernel("attention", "attention", PerLoad(squares=4 * width * share), PerLoad(2 * width + 2 * width * share)),
        matmul("output", width, width, share),
        reduce_scatter(width * share),
        memory_bound("leave_norm", 2 * width * share, split=False),
        matmul("leave", width, width, share, split=False),
    )
    inputs = SavedActivations(replicated=PerLoad(encoder.width))
    kept = SavedActivations(
        PerLoad(2 * width + 2 * width * share), PerLoad(encoder.width + 3 * width + 4 * width * share)
    )
    parameters = 4 * width * width + 3 * width
    whole = encoder.width * width + 6 * width + width + width + width * width + width
    return _layer(encoder, kernels, parameters, whole, saved_by_policy(kept, inputs), width * share)


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
    kept: dict[str, SavedActivations],
    output: float,
) -> LayerSpec:
    part = f"{encoder.name}_projector"
    return LayerSpec("projector", part, kernels, parameters, whole, kept, PerLoad(output), sequence_parallel=False)
