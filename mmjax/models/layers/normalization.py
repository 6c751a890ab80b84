"""Norms of blocks, projectors and generators, all computed in float32: RMSNorm, LayerNorm, GroupNorm."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from configs.modules.transformer import TransformerConfig
from mmjax.models.layers.activations import Activations, recomputed
from mmjax.models.layers.linear import NO_AXES, add_bias, constant_parameter
from sharding.axes import Axes


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x²) + epsilon) * (offset + scale) (arXiv 1910.07467); the offset is 0, or 1 in Gemma."""

    def __init__(
        self, width: int, *, epsilon: float = 1e-5, split: str | None = None, unit_offset: bool = False
    ) -> None:
        """Creates scale `[width]`; with `split` "tensor" the tensor ranks divide the last dimension."""
        self.epsilon, self.split, self.offset = epsilon, split, float(unit_offset)
        self.scale = constant_parameter(1.0 - self.offset, width, split)

    def __call__(self, x: Activations, axes: Axes = NO_AXES) -> Activations:
        """Normalises the last dimension of `[..., width]`."""

        def normalise(x: Activations, scale: jax.Array) -> Activations:
            normalised = divide_by_root_mean_square(x.astype(jnp.float32), self.epsilon, self.split, axes)
            scale = self.offset + scale.astype(jnp.float32) if self.offset else scale
            return scale_channels(normalised, scale).astype(x.dtype)

        return recomputed(normalise)(x, self.scale[...])


class LayerNorm(nnx.Module):
    """(x - mean(x)) / sqrt(variance(x) + epsilon) * scale + bias (arXiv 1607.06450)."""

    def __init__(self, width: int, *, epsilon: float = 1e-6, bias: bool = True, split: str | None = None) -> None:
        """Creates scale and bias `[width]`; with `split` "tensor" the tensor ranks divide the last dimension."""
        self.epsilon, self.split = epsilon, split
        self.scale = constant_parameter(1.0, width, split)
        self.bias = constant_parameter(0.0, width, split) if bias else None

    def __call__(self, x: Activations, axes: Axes = NO_AXES) -> Activations:
        """Normalises the last dimension of `[..., width]`."""

        def normalise(x: Activations, scale: jax.Array) -> Activations:
            wide = x.astype(jnp.float32)
            wide = wide - mean_over_ranks(jnp.mean(wide, axis=-1, keepdims=True), self.split, axes)
            normalised = divide_by_root_mean_square(wide, self.epsilon, self.split, axes)
            return scale_channels(normalised, scale).astype(x.dtype)

        y = recomputed(normalise)(x, self.scale[...])
        return y if self.bias is None else add_bias(y, self.bias[...])


Norm = RMSNorm | LayerNorm


def normalise_mean_square(x: Activations, epsilon: float) -> Activations:
    """X / sqrt(mean(x²) + epsilon) over the last dimension, an RMSNorm without a scale."""

    def normalise(x: Activations) -> Activations:
        return divide_by_root_mean_square(x.astype(jnp.float32), epsilon).astype(x.dtype)

    return recomputed(normalise)(x)


def build_norm(config: TransformerConfig, width: int, *, split: str | None = None) -> Norm:
    """Builds a norm of the kind that the configuration names."""
    if config.norm == "rmsnorm":
        return RMSNorm(width, epsilon=config.norm_epsilon, split=split, unit_offset=config.norm_offset)
    return LayerNorm(width, epsilon=config.norm_epsilon, bias=config.norm_bias, split=split)


class GroupNorm(nnx.Module):
    """Zero mean and unit variance over groups of channels and the whole map (arXiv 1803.08494), scale and bias.

    Where the tensor ranks divide the channels, each rank has whole groups.
    """

    def __init__(self, width: int, groups: int, *, split: str | None = None, epsilon: float = 1e-5) -> None:
        """Creates scale and bias `[width]`; with `split` "tensor" the tensor ranks divide the channels."""
        self.group_width, self.epsilon = width // groups, epsilon
        self.scale = constant_parameter(1.0, width, split)
        self.bias = constant_parameter(0.0, width, split)

    def __call__(self, x: Float[Array, "b y x c"]) -> Float[Array, "b y x c"]:
        """Normalises maps `[b, y, x, c]`."""
        b, height, width, channels = x.shape
        groups = channels // self.group_width
        grouped = x.astype(jnp.float32).reshape(b, height, width, groups, self.group_width)
        wide = standardise(grouped, (1, 2, 4), self.epsilon).reshape(x.shape)
        return add_bias(scale_channels(wide, self.scale[...]).astype(x.dtype), self.bias[...])


def standardise(x: Activations, dimensions: tuple[int, ...], epsilon: float) -> Activations:
    """Shifts and scales x to zero mean and unit variance over some dimensions."""
    x = x - jnp.mean(x, axis=dimensions, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=dimensions, keepdims=True) + epsilon)


def divide_by_root_mean_square(
    x: Activations, epsilon: float, split: str | None = None, axes: Axes = NO_AXES
) -> Activations:
    """X / sqrt(mean(x²) + epsilon) over the last dimension, which the tensor ranks divide with `split` "tensor"."""
    mean_square = mean_over_ranks(jnp.mean(jnp.square(x), axis=-1, keepdims=True), split, axes)
    return x * jax.lax.rsqrt(mean_square + epsilon)


def mean_over_ranks(local_mean: jax.Array, split: str | None, axes: Axes) -> jax.Array:
    """Mean over all channels, given the mean over this rank's equal share of them; local_mean if nothing is split."""
    return jax.lax.pmean(local_mean, axes.tensor) if split and axes.tensor else local_mean


def scale_channels(x: Activations, scale: Float[Array, " d"]) -> Activations:
    """Multiplies x by a scale over the last dimension, in x's precision."""
    return x * scale.astype(x.dtype).reshape((1,) * (x.ndim - 1) + scale.shape)


class LayerScale(nnx.Module):
    """A learned scale per channel (arXiv 2103.17239)."""

    def __init__(self, width: int, initial_value: float) -> None:
        """Creates scale `[width]`."""
        self.scale = constant_parameter(initial_value, width)

    def __call__(self, x: Float[Array, "r q d"]) -> Float[Array, "r q d"]:
        """Scales the last dimension."""
        return scale_channels(x, self.scale[...])
