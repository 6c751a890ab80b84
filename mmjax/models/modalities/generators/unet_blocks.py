"""Building blocks of U-Nets and autoencoders: residual blocks of convolutions, and transformer blocks over a map."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import UNetConfig
from mmjax.models.layers.attention import Attention
from mmjax.models.layers.feed_forward import GatedMLP
from mmjax.models.layers.linear import Convolution, Linear
from mmjax.models.layers.normalization import GroupNorm, LayerNorm
from sharding.axes import Axes

FeatureMaps = Float[Array, "b y x c"]
OutputMaps = Float[Array, "b z w f"]
"""Maps whose size or width differs from the input's."""

SPATIAL_NORM_EPSILON = 1e-6  # of the GroupNorm before a spatial transformer; the other norms have 1e-5


class ResidualBlock(nnx.Module):
    """x + conv(silu(norm(conv(silu(norm(x))) + embedding))); the channels between the convolutions are split."""

    def __init__(
        self, inputs: int, outputs: int, groups: int, *, embedding: int | None = None, epsilon: float = 1e-5
    ) -> None:
        """Creates two norms, two convolutions and, where the width changes, a 1 x 1 convolution for the skip path.

        Args:
            inputs: Input channels.
            outputs: Output channels.
            groups: Groups of the norms.
            embedding: Width of the embedding of time and conditions; None for a block without one.
            epsilon: Epsilon of the norms.
        """
        self.first_norm = GroupNorm(inputs, groups, epsilon=epsilon)
        self.first = Convolution(inputs, outputs, split="columns")
        self.embedding = None if embedding is None else Linear(embedding, outputs, split="columns", bias=True)
        self.second_norm = GroupNorm(outputs, groups, split="tensor", epsilon=epsilon)
        self.second = Convolution(outputs, outputs, split="rows")
        self.skip = None if inputs == outputs else Convolution(inputs, outputs, side=1)

    @jax.named_scope("residual_block")
    def __call__(self, x: FeatureMaps, axes: Axes, embedding: Float[Array, "b e"] | None = None) -> OutputMaps:
        """Applies the block to maps and, in a U-Net, the embedding of time and conditions."""
        hidden = self.first(jax.nn.silu(self.first_norm(x)), axes)  # [b, y, x, f], split over the tensor ranks
        if embedding is not None and self.embedding is not None:
            hidden = hidden + self.embedding(embedding, axes)[:, None, None, :]
        hidden = self.second(jax.nn.silu(self.second_norm(hidden)), axes)  # [b, y, x, f]
        return hidden + (x if self.skip is None else self.skip(x, axes))


class SpatialTransformer(nnx.Module):
    """Self-attention over the map, a second attention and GEGLU, between two projections (arXiv 2112.10752)."""

    def __init__(self, width: int, heads: int, config: UNetConfig) -> None:
        """Creates the layers; `enter` and `leave` are the two projections."""
        self.norm = GroupNorm(width, config.groups, epsilon=SPATIAL_NORM_EPSILON)
        self.enter, self.leave = (_projection(width, config.linear_projection) for _ in range(2))
        self.self_norm, self.self_attention = _layer_norm(width), _attention(width, heads)
        self.is_cross_attention = config.second_attention == "conditions"
        context_width = config.condition_width if self.is_cross_attention else width
        self.second_norm, self.second_attention = _layer_norm(width), _attention(width, heads, context_width)
        self.mlp_norm = _layer_norm(width)
        self.mlp = GatedMLP(width, 4 * width, activation="gelu", bias=True)

    @jax.named_scope("spatial_transformer")
    def __call__(self, x: FeatureMaps, conditions: Float[Array, "b q k"], axes: Axes) -> FeatureMaps:
        """Applies the block; the second attention attends to the conditions or, in AudioLDM, to the map again."""
        tokens = self.enter(self.norm(x), axes).reshape(x.shape[0], -1, x.shape[-1])  # [b, y x, c]
        tokens = tokens + self.self_attention(self.self_norm(tokens), axes)
        context = conditions if self.is_cross_attention else None
        tokens = tokens + self.second_attention(self.second_norm(tokens), axes, context=context)
        tokens = tokens + self.mlp(self.mlp_norm(tokens), axes)
        return x + self.leave(tokens.reshape(x.shape), axes)  # [b, y, x, c]


class UNetBlock(nnx.Module):
    """A residual block, followed by a spatial transformer at the levels that have attention."""

    def __init__(self, inputs: int, level: int, has_attention: bool, config: UNetConfig) -> None:
        """Creates the layers; the level (0 for the finest resolution) gives the output's width."""
        width = config.widths[level]
        self.residual = ResidualBlock(inputs, width, config.groups, embedding=config.embedding_width)
        self.transformer = SpatialTransformer(width, config.heads(level), config) if has_attention else None

    def __call__(
        self, x: FeatureMaps, embedding: Float[Array, "b e"], conditions: Float[Array, "b q k"], axes: Axes
    ) -> OutputMaps:
        """Applies the block to maps, with the embedding of time and with conditions."""
        x = self.residual(x, axes, embedding)
        return x if self.transformer is None else self.transformer(x, conditions, axes)


def _projection(width: int, linear: bool) -> Linear | Convolution:
    return Linear(width, width, bias=True) if linear else Convolution(width, width, side=1)


def _layer_norm(width: int) -> LayerNorm:
    return LayerNorm(width, epsilon=1e-5)


def _attention(width: int, heads: int, context_width: int = 0) -> Attention:
    """Attention with a bias in its output projection alone."""
    return Attention(width, heads, context_width=context_width, biases=("output",))


def upsample_nearest(x: FeatureMaps) -> OutputMaps:
    """Doubles height and width by repeating every pixel."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
