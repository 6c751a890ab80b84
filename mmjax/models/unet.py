"""The conditional U-Net of latent diffusion (arXiv 2112.10752): residual convolutions and transformer blocks."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import GeneratorConfig
from mmjax.models.attention import Attention
from mmjax.models.layers import MLP, Convolution, GatedMLP, GroupNorm, LayerNorm, Linear
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


class TransformerBlock(nnx.Module):
    """Self-attention over the map, cross-attention to the conditions, and GEGLU, between two linear maps."""

    def __init__(self, width: int, config: GeneratorConfig) -> None:
        heads = width // config.head_width
        self.norm = GroupNorm(width, config.groups)
        self.enter, self.leave = Linear(width, width, bias=True), Linear(width, width, bias=True)
        self.self_norm, self.cross_norm, self.mlp_norm = (LayerNorm(width) for _ in range(3))
        self.self_attention = Attention(width, heads)
        self.cross_attention = Attention(width, heads, source_width=config.condition_width)
        self.mlp = GatedMLP(width, 4 * width, activation="gelu_tanh", bias=True)

    def __call__(self, x: Maps, conditions: Float[Array, "b q k"], axes: Axes) -> Maps:
        flat = self.enter(self.norm(x).reshape(x.shape[0], -1, x.shape[-1]), axes)
        flat = flat + self.self_attention(self.self_norm(flat), axes)
        flat = flat + self.cross_attention(self.cross_norm(flat), axes, source=conditions)
        flat = flat + self.mlp(self.mlp_norm(flat), axes)
        return x + self.leave(flat, axes).reshape(x.shape)


class Block(nnx.Module):
    """A residual block, and a transformer block behind it where the resolution has attention."""

    def __init__(self, inputs: int, outputs: int, attends: bool, config: GeneratorConfig) -> None:
        self.residual = ResidualBlock(inputs, outputs, config.widths[0] * 4, config.groups)
        self.transformer = TransformerBlock(outputs, config) if attends else None

    def __call__(
        self, x: Maps, embedding: Float[Array, "b e"], conditions: Float[Array, "b q k"], axes: Axes
    ) -> OtherMaps:
        x = self.residual(x, embedding, axes)
        return x if self.transformer is None else self.transformer(x, conditions, axes)


class UNet(nnx.Module):
    """Noised images, times and conditions to velocities; images enter folded by `patch`."""

    def __init__(self, config: GeneratorConfig) -> None:
        widths, hidden = config.widths, config.widths[0] * 4
        folded = config.channels * config.patch**2
        self.patch, self.time_width = config.patch, config.widths[0]
        self.time = MLP(self.time_width, hidden, hidden, activation="silu")
        self.condition = Linear(config.condition_width, hidden)
        self.enter = Convolution(folded, widths[0])
        kept, width = [widths[0]], widths[0]
        shrink, down, grow, up = [], [], [], []
        for level, level_width in enumerate(widths):
            if level:
                shrink.append(Convolution(width, width, stride=2))
                kept.append(width)
            blocks = []
            for _ in range(config.blocks):
                blocks.append(Block(width, level_width, level in config.attentions, config))
                width = level_width
                kept.append(width)
            down.append(nnx.List(blocks))
        self.middle_in = Block(width, width, True, config)
        self.middle_out = Block(width, width, False, config)
        for level in reversed(range(len(widths))):
            blocks = []
            for _ in range(config.blocks + 1):
                blocks.append(Block(width + kept.pop(), widths[level], level in config.attentions, config))
                width = widths[level]
            up.append(nnx.List(blocks))
            if level:
                grow.append(Convolution(width, width))
        self.shrink, self.down, self.grow, self.up = map(nnx.List, (shrink, down, grow, up))
        self.leave_norm = GroupNorm(widths[0], config.groups)
        self.leave = Convolution(widths[0], folded, zero=True)

    def __call__(self, images: Maps, time: Float[Array, " b"], conditions: Float[Array, "b q k"], axes: Axes) -> Maps:
        dtype = conditions.dtype
        times = sine_times(time, self.time_width).astype(dtype)
        embedding = self.time(times, axes) + self.condition(jnp.mean(conditions, axis=1), axes)
        embedding = jax.nn.silu(embedding)
        x = self.enter(fold(images.astype(dtype), self.patch), axes)
        kept = [x]
        for level, blocks in enumerate(self.down):
            if level:
                x = self.shrink[level - 1](x, axes)
                kept.append(x)
            for block in blocks:
                x = block(x, embedding, conditions, axes)
                kept.append(x)
        x = self.middle_in(x, embedding, conditions, axes)
        x = self.middle_out(x, embedding, conditions, axes)
        for number, blocks in enumerate(self.up):
            if number:
                x = self.grow[number - 1](doubled(x), axes)
            for block in blocks:
                x = block(jnp.concatenate([x, kept.pop()], axis=-1), embedding, conditions, axes)
        return unfold(self.leave(jax.nn.silu(self.leave_norm(x)), axes), self.patch)


def doubled(x: Maps) -> OtherMaps:
    """Every pixel four times: twice the height and width."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


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
