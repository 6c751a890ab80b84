"""What U-Nets and autoencoders are made of: residual blocks of convolutions, and transformer blocks over a map."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import GeneratorConfig
from mmjax.models.layers.attention import Attention
from mmjax.models.layers.linear import Convolution, GatedMLP, GroupNorm, LayerNorm, Linear
from sharding.axes import Axes

FeatureMaps = Float[Array, "b y x c"]
OutputMaps = Float[Array, "b z w f"]
"""Maps of another size or width than those beside them."""

TRANSFORMER_EPSILON = 1e-6  # of the GroupNorm before a transformer block; the other norms have 1e-5


class ResidualBlock(nnx.Module):
    """Two normed convolutions, in a U-Net with the embedding added between; inner channels are split."""

    def __init__(
        self, inputs: int, outputs: int, groups: int, *, embedding: int | None = None, epsilon: float = 1e-5
    ) -> None:
        """`embedding` is the width of the embedding of time and conditions; None without one."""
        self.first_norm = GroupNorm(inputs, groups, epsilon=epsilon)
        self.first = Convolution(inputs, outputs, split="columns")
        self.embedding = None if embedding is None else Linear(embedding, outputs, split="columns", bias=True)
        self.second_norm = GroupNorm(outputs, groups, split="tensor", epsilon=epsilon)
        self.second = Convolution(outputs, outputs, split="rows")
        self.skip = None if inputs == outputs else Convolution(inputs, outputs, side=1)

    def __call__(self, x: FeatureMaps, axes: Axes, embedding: Float[Array, "b e"] | None = None) -> OutputMaps:
        inner = self.first(jax.nn.silu(self.first_norm(x)), axes)
        if embedding is not None:
            inner = inner + self.embedding(embedding, axes)[:, None, None, :]
        inner = self.second(jax.nn.silu(self.second_norm(inner)), axes)
        return inner + (x if self.skip is None else self.skip(x, axes))


class SpatialTransformer(nnx.Module):
    """Self-attention over the map, a second attention, and GEGLU, between two linear maps (arXiv 2112.10752)."""

    def __init__(self, width: int, heads: int, config: GeneratorConfig) -> None:
        self.norm = GroupNorm(width, config.groups, epsilon=TRANSFORMER_EPSILON)
        self.enter, self.leave = (_projection(width, config.linear_projection) for _ in range(2))
        self.self_norm, self.self_attention = layer_norm(width), attention(width, heads)
        self.crosses = config.second_attention == "conditions"
        source = config.condition_width if self.crosses else width
        self.second_norm, self.second_attention = layer_norm(width), attention(width, heads, source)
        self.mlp_norm = layer_norm(width)
        self.mlp = GatedMLP(width, 4 * width, activation="gelu", bias=True)

    def __call__(self, x: FeatureMaps, conditions: Float[Array, "b q k"], axes: Axes) -> FeatureMaps:
        flat = self.enter(self.norm(x), axes).reshape(x.shape[0], -1, x.shape[-1])
        flat = flat + self.self_attention(self.self_norm(flat), axes)
        source = conditions if self.crosses else None
        flat = flat + self.second_attention(self.second_norm(flat), axes, source=source)
        flat = flat + self.mlp(self.mlp_norm(flat), axes)
        return x + self.leave(flat.reshape(x.shape), axes)


class UNetBlock(nnx.Module):
    """A residual block, and a transformer block behind it where the resolution has attention."""

    def __init__(self, inputs: int, level: int, attends: bool, config: GeneratorConfig) -> None:
        """`level` is the resolution, 0 the finest; its width is the output's."""
        width = config.widths[level]
        self.residual = ResidualBlock(inputs, width, config.groups, embedding=config.embedding_width)
        self.transformer = SpatialTransformer(width, config.heads(level), config) if attends else None

    def __call__(
        self, x: FeatureMaps, embedding: Float[Array, "b e"], conditions: Float[Array, "b q k"], axes: Axes
    ) -> OutputMaps:
        x = self.residual(x, axes, embedding)
        return x if self.transformer is None else self.transformer(x, conditions, axes)


def _projection(width: int, linear: bool) -> Linear | Convolution:
    return Linear(width, width, bias=True) if linear else Convolution(width, width, side=1)


def layer_norm(width: int) -> LayerNorm:
    """As transformer blocks of U-Nets have it."""
    return LayerNorm(width, epsilon=1e-5)


def attention(width: int, heads: int, source_width: int = 0) -> Attention:
    """Attention whose output alone has a bias."""
    return Attention(width, heads, source_width=source_width, biases=("output",))


def upsample_nearest(x: FeatureMaps) -> OutputMaps:
    """Every pixel four times: twice the height and width."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
