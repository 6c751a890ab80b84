"""The conditional U-Net: residual convolutions, attention at the coarsest resolution, conditions by cross-attention."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import GeneratorConfig
from mmjax.models.attention import Attention
from mmjax.models.layers import MLP, Convolution, GroupNorm, LayerNorm, Linear
from sharding.axes import Axes

Maps = Float[Array, "b y x c"]
OtherMaps = Float[Array, "b z w f"]
"""Maps of another size or width than those beside them."""


def sine_times(time: Float[Array, " b"], width: int) -> Float[Array, "b {width}"]:
    """Sines and cosines of times in [0, 1], as transformers embed positions."""
    frequencies = jnp.exp(jnp.linspace(0.0, jnp.log(1000.0), width // 2))
    angles = time[:, None] * frequencies[None, :]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


class ResidualBlock(nnx.Module):
    """Two normed convolutions with the embedding of time and conditions added between; inner channels are split."""

    def __init__(self, inputs: int, outputs: int, embedding: int, groups: int) -> None:
        self.first_norm = GroupNorm(inputs, groups)
        self.first = Convolution(inputs, outputs, split="columns")
        self.embedding = Linear(embedding, outputs, split="columns")
        self.second_norm = GroupNorm(outputs, groups, split="tensor")
        self.second = Convolution(outputs, outputs, split="rows")
        self.skip = None if inputs == outputs else Convolution(inputs, outputs, side=1)

    def __call__(self, x: Maps, embedding: Float[Array, "b e"], axes: Axes) -> OtherMaps:
        inner = self.first(jax.nn.silu(self.first_norm(x)), axes)
        inner = inner + self.embedding(embedding, axes)[:, None, None, :]
        inner = self.second(jax.nn.silu(self.second_norm(inner)), axes)
        return inner + (x if self.skip is None else self.skip(x, axes))


class ConditionedAttention(nnx.Module):
    """Self-attention over the map, then cross-attention to the conditions."""

    def __init__(self, width: int, config: GeneratorConfig) -> None:
        self.self_norm, self.cross_norm = LayerNorm(width), LayerNorm(width)
        self.self_attention = Attention(width, config.heads)
        self.cross_attention = Attention(width, config.heads, source_width=config.condition_width)

    def __call__(self, x: Maps, conditions: Float[Array, "b q k"], axes: Axes) -> Maps:
        flat = x.reshape(x.shape[0], -1, x.shape[-1])
        flat = flat + self.self_attention(self.self_norm(flat), axes)
        flat = flat + self.cross_attention(self.cross_norm(flat), axes, source=conditions)
        return flat.reshape(x.shape)


class UNet(nnx.Module):
    """Noised images, times and conditions to velocities; images enter folded by `patch`."""

    def __init__(self, config: GeneratorConfig) -> None:
        widths, hidden = config.widths, config.widths[0] * 4
        folded = config.channels * config.patch**2

        def residual(inputs: int, outputs: int) -> ResidualBlock:
            return ResidualBlock(inputs, outputs, hidden, config.groups)

        self.patch, self.time_width = config.patch, config.widths[0]
        self.time = MLP(self.time_width, hidden, hidden, activation=jax.nn.silu)
        self.condition = Linear(config.condition_width, hidden)
        self.enter = Convolution(folded, widths[0])
        kept, width = [widths[0]], widths[0]
        down, up = [], []
        for level, level_width in enumerate(widths):
            if level:
                down.append(nnx.List([Convolution(width, level_width, stride=2)]))
                width = level_width
                kept.append(width)
            blocks = [residual(width, width) for _ in range(config.blocks)]
            kept.extend([width] * config.blocks)
            down.append(nnx.List(blocks))
        self.middle_in, self.middle_out = residual(width, width), residual(width, width)
        self.attention = ConditionedAttention(width, config)
        for level in reversed(range(len(widths))):
            blocks = []
            for _ in range(config.blocks + 1):
                blocks.append(residual(width + kept.pop(), widths[level]))
                width = widths[level]
            up.append(nnx.List(blocks))
        self.down, self.up = nnx.List(down), nnx.List(up)
        self.leave_norm = GroupNorm(widths[0], config.groups)
        self.leave = Convolution(widths[0], folded, zero=True)

    def __call__(self, images: Maps, time: Float[Array, " b"], conditions: Float[Array, "b q k"], axes: Axes) -> Maps:
        dtype = conditions.dtype
        times = sine_times(time, self.time_width).astype(dtype)
        embedding = self.time(times, axes) + self.condition(jnp.mean(conditions, axis=1), axes)
        embedding = jax.nn.silu(embedding)
        x = self.enter(fold(images.astype(dtype), self.patch), axes)
        kept = [x]
        for level in self.down:
            for block in level:
                x = block(x, axes) if isinstance(block, Convolution) else block(x, embedding, axes)
                kept.append(x)
        x = self.middle_in(x, embedding, axes)
        x = self.middle_out(self.attention(x, conditions, axes), embedding, axes)
        for number, level in enumerate(self.up):
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2) if number else x
            for block in level:
                x = block(jnp.concatenate([x, kept.pop()], axis=-1), embedding, axes)
        return unfold(self.leave(jax.nn.silu(self.leave_norm(x)), axes), self.patch)


def fold(images: Maps, patch: int) -> OtherMaps:
    """Moves patch x patch pixels into the channels."""
    b, height, width, channels = images.shape
    cells = images.reshape(b, height // patch, patch, width // patch, patch, channels)
    return cells.transpose(0, 1, 3, 2, 4, 5).reshape(b, height // patch, width // patch, patch * patch * channels)


def unfold(maps: Maps, patch: int) -> OtherMaps:
    """The inverse of `fold`."""
    b, height, width, folded = maps.shape
    cells = maps.reshape(b, height, width, patch, patch, folded // patch**2)
    return cells.transpose(0, 1, 3, 2, 4, 5).reshape(b, height * patch, width * patch, folded // patch**2)
