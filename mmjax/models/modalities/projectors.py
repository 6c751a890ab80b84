"""Projectors between modules.

The projector of an encoder into the backbone is the encoder's last piece; the projector of the backbone's hidden states
into a generator's conditions is the generator's first piece.
"""

import functools
from typing import Any

import jax
from jaxtyping import Array, Float

from configs.architectures import BackboneConfig, EncoderConfig, GeneratorConfig
from configs.modules.projectors import (
    AdapterProjectorConfig,
    LinearProjectorConfig,
    MLPProjectorConfig,
    ResamplerConfig,
)
from mmjax.models.layers.activations import ACTIVATIONS, recomputed
from mmjax.models.layers.attention import Attention
from mmjax.models.layers.feed_forward import MLP
from mmjax.models.layers.linear import Linear, add_bias, normal_parameter
from mmjax.models.layers.normalization import LayerNorm, RMSNorm
from mmjax.models.layers.positions import sinusoidal_positions
from mmjax.models.modalities.deepstack import DeepStackProjector
from mmjax.models.structure.module import ActivationsByModule, ModuleInputs, ModuleOutput, PieceModule
from pallas_kernels.packed_attention import make_segment_mask
from sharding.axes import Axes


def build_projector(config: EncoderConfig, backbone: BackboneConfig) -> PieceModule:
    """Builds the projector that an encoder's configuration names, with one for each layer that is tapped."""
    last = projector_from_config(config.projector, config, backbone)
    if not config.tapped_layers:
        return last
    taps = [projector_from_config(config.tap_projector, config, backbone) for _ in config.tapped_layers]
    return DeepStackProjector(last, taps, config.width)


@functools.singledispatch
def projector_from_config(config: Any, encoder: EncoderConfig, backbone: BackboneConfig) -> PieceModule:
    """Builds the projector that a configuration describes.

    A new kind registers its own function with `@projector_from_config.register`, by the type of its configuration.
    """
    raise TypeError(
        f"no projector is built from a {type(config).__name__}; register one with projector_from_config.register"
    )


class MLPProjector(PieceModule):
    """Maps each group of adjacent encoder positions to one backbone token by an MLP.

    In an image a group is a square of patches (the pixel shuffle of InternVL, arXiv 2404.16821), in a clip a moment.
    """

    batch_keys = ()

    def __init__(self, config: MLPProjectorConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> None:
        """Creates the MLP and, if the configuration has one, the norm before it."""
        self.group, self.target = encoder.projected_positions, backbone.name
        inputs = self.group * encoder.width
        self.norm = LayerNorm(inputs, epsilon=config.norm_epsilon) if config.norm else None
        hidden = config.hidden_width(inputs, backbone.width)
        self.mlp = MLP(inputs, hidden, backbone.width, activation=config.activation)

    @jax.named_scope("projector")
    def __call__(self, x: Float[Array, "r p d"], batch: ModuleInputs, axes: Axes) -> ModuleOutput:
        """Projects `[r, p, d]`; the data side orders patches so that a group is adjacent, and grouping is a reshape."""
        groups = join_positions(x, self.group)
        return ModuleOutput({self.target: self.mlp(groups if self.norm is None else self.norm(groups), axes)})


@projector_from_config.register
def _(config: MLPProjectorConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> PieceModule:
    return MLPProjector(config, encoder, backbone)


def join_positions(x: Float[Array, "r p d"], group: int) -> Float[Array, "r t c"]:
    """Concatenates the channels of every `group` neighbouring positions."""
    rows, positions, width = x.shape
    return x.reshape(rows, positions // group, group * width)


class Resampler(PieceModule):
    """Cross-attention with one query for each group of adjacent positions, after Qwen-VL's (arXiv 2308.12966).

    A query attends to all of its image or clip, wherever that is in the row. Keys and values are the encoder's
    outputs plus their positions; a query is one learned vector plus the position of its group.
    """

    batch_keys = ("segments", "positions")

    def __init__(self, config: ResamplerConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> None:
        """Creates input projection `enter`, norms, the learned query, attention and output projection `leave`."""
        width = backbone.width
        self.pool, self.group, self.target = encoder.pool, encoder.projected_positions, backbone.name
        self.enter = Linear(encoder.width, width)
        self.source_norm, self.query_norm, self.leave_norm = (LayerNorm(width) for _ in range(3))
        self.query = normal_parameter((width,), (None,), 0.02)
        self.attention = Attention(width, config.heads, biases=("query", "key", "value", "output"))
        self.leave = Linear(width, width, bias=True)

    @jax.named_scope("projector")
    def __call__(self, x: Float[Array, "r p d"], batch: ModuleInputs, axes: Axes) -> ModuleOutput:
        """Projects `[r, p, d]` to one token per group."""
        segments, positions = batch["segments"][:, :: self.pool], batch["positions"][:, :: self.pool]
        encoder_outputs = self.source_norm(self.enter(x, axes))  # [r, p, width]
        embedded_positions = sinusoidal_positions(positions, encoder_outputs.shape[-1]).astype(encoder_outputs.dtype)
        queries = self.query_norm(add_bias(embedded_positions[:, :: self.group], self.query[...]))
        mask = make_segment_mask(segments[:, :: self.group], keys=segments)
        attended = self.attention(queries, axes, mask=mask, context=encoder_outputs + embedded_positions)
        return ModuleOutput({self.target: self.leave(self.leave_norm(attended), axes)})


@projector_from_config.register
def _(config: ResamplerConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> PieceModule:
    return Resampler(config, encoder, backbone)


class LinearProjector(PieceModule):
    """Maps the average of each group of adjacent encoder positions to one backbone token by one matmul."""

    batch_keys = ()

    def __init__(self, config: LinearProjectorConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> None:
        """Creates the matmul, which every tensor rank holds, and the norm before it if there is one."""
        self.group, self.target = encoder.projected_positions, backbone.name
        self.norm = RMSNorm(encoder.width, epsilon=config.norm_epsilon, unit_offset=True) if config.norm else None
        self.linear = Linear(encoder.width, backbone.width, bias=config.bias)

    @jax.named_scope("projector")
    def __call__(self, x: Float[Array, "r p d"], batch: ModuleInputs, axes: Axes) -> ModuleOutput:
        """Projects `[r, p, d]`; the data side orders patches so that a group is adjacent."""
        rows, positions, width = x.shape
        means = x.reshape(rows, positions // self.group, self.group, width).mean(axis=2)  # [r, t, d]
        return ModuleOutput({self.target: self.linear(means if self.norm is None else self.norm(means), axes)})


@projector_from_config.register
def _(config: LinearProjectorConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> PieceModule:
    return LinearProjector(config, encoder, backbone)


class AdapterProjector(PieceModule):
    """Maps each group of adjacent encoder positions to one backbone token by an MLP, a GELU and one more matmul."""

    batch_keys = ()

    def __init__(self, config: AdapterProjectorConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> None:
        """Creates the MLP and the matmul behind it, which every tensor rank holds."""
        self.group, self.target = encoder.projected_positions, backbone.name
        self.mlp = MLP(self.group * encoder.width, config.width, config.width, activation="gelu", bias=False)
        self.linear = Linear(config.width, backbone.width)

    @jax.named_scope("projector")
    def __call__(self, x: Float[Array, "r p d"], batch: ModuleInputs, axes: Axes) -> ModuleOutput:
        """Projects `[r, p, d]`; the data side orders patches so that a group is adjacent."""
        adapted = recomputed(ACTIVATIONS["gelu"])(self.mlp(join_positions(x, self.group), axes))
        return ModuleOutput({self.target: self.linear(adapted, axes)})


@projector_from_config.register
def _(config: AdapterProjectorConfig, encoder: EncoderConfig, backbone: BackboneConfig) -> PieceModule:
    return AdapterProjector(config, encoder, backbone)


class ConditionProjector(PieceModule):
    """Maps the backbone's hidden states at an image's condition positions to the generator's condition width."""

    batch_keys = ()

    def __init__(self, config: GeneratorConfig, backbone: BackboneConfig) -> None:
        """Creates the norm and the MLP."""
        self.source = backbone.name
        self.norm = LayerNorm(backbone.width)
        self.mlp = MLP(backbone.width, config.condition_width * 2, config.condition_width)

    @jax.named_scope("projector")
    def __call__(self, inputs: ActivationsByModule, batch: ModuleInputs, axes: Axes) -> Float[Array, "r g q c"]:
        """Projects q hidden states for each of the g images of a row."""
        return self.mlp(self.norm(inputs[self.source]), axes)
