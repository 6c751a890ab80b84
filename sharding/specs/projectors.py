"""Projectors between encoders and the backbone as layers.

`encoders.py` puts a projector behind every encoder.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig, EncoderConfig
from configs.modules.projectors import (
    AdapterProjectorConfig,
    LinearProjectorConfig,
    MLPProjectorConfig,
    ResamplerConfig,
)
from sharding.specs.layers.layer import (
    Kernel,
    LayerSpec,
    Number,
    PerLoad,
    RecomputePolicy,
    SavedActivations,
    all_gather,
    matmul,
    memory_bound,
    reduce_scatter,
    saved_by_policy,
)


def projector_with_taps(encoder: EncoderConfig, backbone: BackboneConfig) -> LayerSpec:
    """The layer of the projectors of an encoder and of its tapped layers: one token has the channels of all."""
    layer = projector_layer(encoder.projector, encoder, backbone)
    for number in range(len(encoder.tapped_layers)):
        tap = projector_layer(encoder.tap_projector, encoder, backbone)
        renamed = (dataclasses.replace(kernel, name=f"tap_{number}_{kernel.name}") for kernel in tap.kernels)
        layer = dataclasses.replace(
            layer,
            kernels=(*layer.kernels, *renamed),
            parameters=layer.parameters + tap.parameters,
            replicated_parameters=layer.replicated_parameters + tap.replicated_parameters,
            saved={policy: saved.plus(tap.saved[policy]) for policy, saved in layer.saved.items()},
            output_elements=layer.output_elements + tap.output_elements,
        )
    return layer


def _split_mlp(
    entering: Number, merged: int, hidden: int, outputs: int, tokens_per_position: Number
) -> tuple[Kernel, ...]:
    """The kernels of an MLP that tensor ranks divide, from `entering` values of a position to a token's outputs."""
    return (
        all_gather(entering),
        matmul("up", merged, hidden, tokens_per_position),
        memory_bound("activation", 2 * hidden * tokens_per_position),
        matmul("down", hidden, outputs, tokens_per_position, split_by="rows"),
        reduce_scatter(outputs * tokens_per_position),
    )


@functools.singledispatch
def projector_layer(config: Any, encoder: EncoderConfig, backbone: BackboneConfig) -> LayerSpec:
    """The layer of a projector. A new kind of projector registers its own, by its configuration's type."""
    raise TypeError(f"no layer is known for {type(config).__name__}; register one with projector_layer")


@projector_layer.register
def _mlp(config: MLPProjectorConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> LayerSpec:
    tokens_per_position = 1 / encoder.positions_per_token
    merged, out = encoder.projected_positions * encoder.width, backbone.width
    hidden, entering = config.hidden_width(merged, out), encoder.width / encoder.pool
    kernels = (
        *((memory_bound("norm", 2 * entering, split=False),) if config.norm else ()),
        *_split_mlp(entering, merged, hidden, out, tokens_per_position),
    )
    inputs = SavedActivations(replicated=PerLoad(entering))
    saved = SavedActivations(PerLoad(2 * hidden * tokens_per_position), PerLoad(entering * (1 + config.norm)))
    return _layer(
        encoder,
        kernels,
        parameters=merged * hidden + hidden + hidden * out,
        replicated_parameters=out + 2 * merged * config.norm,
        saved=saved_by_policy(saved, inputs),
        output_width=out * tokens_per_position,
    )


@projector_layer.register
def _resampler(config: ResamplerConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> LayerSpec:
    tokens_per_position, width = 1 / encoder.positions_per_token, backbone.width
    entering = 1 / encoder.pool  # averaged positions per position
    scores = PerLoad(squared_lengths=4 * width * tokens_per_position * entering)
    kernels = (
        matmul("input_proj", encoder.width, width, entering, split=False),
        memory_bound("norms", 4 * width * entering + 2 * width * tokens_per_position, split=False),
        all_gather(width * (entering + tokens_per_position)),
        matmul("query", width, width, tokens_per_position),
        matmul("key_value", width, 2 * width, entering),
        Kernel(
            "attention",
            "attention",
            scores,
            PerLoad(2 * width * entering + 2 * width * tokens_per_position),
            head_width=width // config.heads,
        ),
        matmul("output", width, width, tokens_per_position, split_by="rows"),
        reduce_scatter(width * tokens_per_position),
        memory_bound("output_norm", 2 * width * tokens_per_position, split=False),
        matmul("output_proj", width, width, tokens_per_position, split=False),
    )
    inputs = SavedActivations(replicated=PerLoad(encoder.width * entering))
    saved = SavedActivations(
        PerLoad(2 * width * entering + 2 * width * tokens_per_position),
        PerLoad((encoder.width + 3 * width) * entering + 4 * width * tokens_per_position),
    )
    return _layer(
        encoder,
        kernels,
        parameters=4 * width * width + 3 * width,
        replicated_parameters=encoder.width * width + 6 * width + width + width + width * width + width,
        saved=saved_by_policy(saved, inputs),
        output_width=width * tokens_per_position,
    )


@projector_layer.register
def _linear(config: LinearProjectorConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> LayerSpec:
    tokens_per_position, width, out = 1 / encoder.positions_per_token, encoder.width, backbone.width
    entering = width / encoder.pool
    averages = encoder.projected_positions > 1
    norm = memory_bound("norm", 2 * width * tokens_per_position, split=False)
    kernels = (
        *((memory_bound("average", entering + width * tokens_per_position, split=False),) if averages else ()),
        *((norm,) if config.norm else ()),
        matmul("linear", width, out, tokens_per_position, split=False),
    )
    inputs = SavedActivations(replicated=PerLoad(entering))
    saved = SavedActivations(replicated=PerLoad(width * (1 + config.norm) * tokens_per_position))
    return _layer(
        encoder,
        kernels,
        parameters=0,
        replicated_parameters=width * (out + config.norm) + out * config.bias,
        saved=saved_by_policy(saved, inputs),
        output_width=out * tokens_per_position,
    )


@projector_layer.register
def _adapter(config: AdapterProjectorConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> LayerSpec:
    tokens_per_position = 1 / encoder.positions_per_token
    merged, width, out = encoder.projected_positions * encoder.width, config.width, backbone.width
    entering = encoder.width / encoder.pool
    kernels = (
        *_split_mlp(entering, merged, width, width, tokens_per_position),
        memory_bound("second_activation", 2 * width * tokens_per_position, split=False),
        matmul("linear", width, out, tokens_per_position, split=False),
    )
    inputs = SavedActivations(replicated=PerLoad(entering))
    saved = SavedActivations(
        PerLoad(2 * width * tokens_per_position), PerLoad(entering + 2 * width * tokens_per_position)
    )
    return _layer(
        encoder,
        kernels,
        parameters=merged * width + width * width,
        replicated_parameters=width * out,
        saved=saved_by_policy(saved, inputs),
        output_width=out * tokens_per_position,
    )


@functools.singledispatch
def projector_splits(config: Any, encoder: EncoderConfig, backbone: BackboneConfig) -> tuple[tuple[str, int], ...]:
    """The sizes that tensor parallelism divides in a projector: pairs (name, size); none by default."""
    return ()


@projector_splits.register
def _mlp_splits(
    config: MLPProjectorConfig, encoder: EncoderConfig, backbone: BackboneConfig
) -> tuple[tuple[str, int], ...]:
    merged = encoder.projected_positions * encoder.width
    return (("projector width", config.hidden_width(merged, backbone.width)),)


@projector_splits.register
def _adapter_splits(
    config: AdapterProjectorConfig, encoder: EncoderConfig, backbone: BackboneConfig
) -> tuple[tuple[str, int], ...]:
    return (("projector width", config.width),)


@projector_splits.register
def _resampler_splits(
    config: ResamplerConfig, encoder: EncoderConfig, backbone: BackboneConfig
) -> tuple[tuple[str, int], ...]:
    return (("projector heads", config.heads),)


def _layer(
    encoder: EncoderConfig,
    kernels: tuple[Kernel, ...],
    *,
    parameters: int,
    replicated_parameters: int,
    saved: Mapping[RecomputePolicy, SavedActivations],
    output_width: float,
) -> LayerSpec:
    return LayerSpec(
        name="projector",
        part=f"{encoder.name}_projector",
        kernels=kernels,
        parameters=parameters,
        replicated_parameters=replicated_parameters,
        saved=saved,
        output_elements=PerLoad(output_width),
        sequence_parallel=False,
    )
