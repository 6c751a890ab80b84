"""Projectors between modules: the input projector lives with its encoder, the output projector with its generator."""

import functools
from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import AudioConfig, BackboneConfig, GeneratorConfig, VisionConfig
from configs.projectors import MLPProjectorConfig, ResamplerConfig
from mmjax.models.layers.attention import Attention
from mmjax.models.layers.linear import MLP, LayerNorm, Linear, add_bias, normal_parameter
from mmjax.models.layers.positions import sinusoidal_positions
from mmjax.models.structure.interface import ActivationsByModule, Batch, ModuleOutput
from pallas_kernels.packed_attention import make_segment_mask
from sharding.axes import Axes

EncoderConfig = VisionConfig | AudioConfig


def build_projector(config: EncoderConfig, backbone: BackboneConfig) -> nnx.Module:
    """The projector that an encoder's configuration asks for."""
    return projector_from_config(config.projector, config, backbone)


@functools.singledispatch
def projector_from_config(config: Any, encoder: EncoderConfig, backbone: BackboneConfig) -> nnx.Module:
    """The projector of a configuration. A new kind registers its own, by the type of its configuration."""
    raise TypeError(f"no projector is built from a {type(config).__name__}; register one with projector_of")


class MLPProjector(nnx.Module):
    """Some adjacent positions of an encoder become one backbone token, through an MLP.

    Of an image they are a square of patches (the pixel shuffle of InternVL, arXiv 2404.16821), of a clip a moment.
    """

    reads = ()

    def __init__(self, config: MLPProjectorConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> None:
        self.merged, self.target = encoder.positions_per_token, backbone.name
        inputs = self.merged * encoder.width
        self.norm = LayerNorm(inputs, epsilon=1e-5) if config.norm else None
        self.mlp = MLP(inputs, backbone.width, backbone.width, activation=config.activation)

    def __call__(self, x: Float[Array, "r p d"], batch: Batch, axes: Axes) -> ModuleOutput:
        """The batch's patches are ordered so that a square is adjacent: the shuffle is a reshape."""
        rows, positions, width = x.shape
        merged = x.reshape(rows, positions // self.merged, self.merged * width)
        return ModuleOutput({self.target: self.mlp(merged if self.norm is None else self.norm(merged), axes)})


@projector_from_config.register
def _(config: MLPProjectorConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> nnx.Module:
    return MLPProjector(config, encoder, backbone)


class Resampler(nnx.Module):
    """One query for every group of adjacent positions looks at all of its image or clip, wherever that lies in the row.

    After Qwen-VL's (arXiv 2308.12966): keys are the encoder's outputs and where they stand, queries a learned vector
    and where the group stands.
    """

    reads = ("segments", "positions")

    def __init__(self, config: ResamplerConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> None:
        self.merged, self.target, width = encoder.positions_per_token, backbone.name, backbone.width
        self.enter = Linear(encoder.width, width)
        self.source_norm, self.query_norm, self.leave_norm = (LayerNorm(width) for _ in range(3))
        self.query = normal_parameter((width,), (None,), 0.02)
        self.attention = Attention(width, config.heads, biases=("query", "key", "value", "output"))
        self.leave = Linear(width, width, bias=True)

    def __call__(self, x: Float[Array, "r p d"], batch: Batch, axes: Axes) -> ModuleOutput:
        segments, positions = batch["segments"], batch["positions"]
        source = self.source_norm(self.enter(x, axes))
        where = sinusoidal_positions(positions, source.shape[-1]).astype(source.dtype)
        queries = self.query_norm(add_bias(where[:, :: self.merged], self.query[...]))
        packing = make_segment_mask(segments[:, :: self.merged], keys=segments)
        seen = self.attention(queries, axes, packing=packing, source=source + where)
        return ModuleOutput({self.target: self.leave(self.leave_norm(seen), axes)})


@projector_from_config.register
def _(config: ResamplerConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> nnx.Module:
    return Resampler(config, encoder, backbone)


class ConditionProjector(nnx.Module):
    """Backbone hidden states at an image's condition positions to the generator's condition width."""

    reads = ()

    def __init__(self, config: GeneratorConfig, backbone: BackboneConfig) -> None:
        self.source = backbone.name
        self.norm = LayerNorm(backbone.width)
        self.mlp = MLP(backbone.width, config.condition_width * 2, config.condition_width)

    def __call__(self, inputs: ActivationsByModule, batch: Batch, axes: Axes) -> Float[Array, "r g q c"]:
        return self.mlp(self.norm(inputs[self.source]), axes)
