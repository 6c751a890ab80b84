"""Layers shared by all modules. Weights are whole in the module's own description and local inside `jax.shard_map`.

Every parameter carries `split`: per dimension None or "tensor", which says how tensor parallelism divides it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from pallas_kernels.collective_matmul import split_matmul
from sharding.axes import Axes

Activations = Float[Array, "..."]


def weight(shape: tuple[int, ...], split: tuple[str | None, ...], deviation: float) -> nnx.Param:
    """A parameter whose initial values are normal with this standard deviation (`parameters.initial_layer`)."""
    return nnx.Param(jnp.zeros(shape), split=split, deviation=deviation, mean=0.0)


def constant(value: float, width: int, split: str | None = None) -> nnx.Param:
    """A vector parameter that starts at one value."""
    return nnx.Param(jnp.full((width,), value), split=(split,), deviation=0.0, mean=value)


def add_bias(x: Activations, bias: Float[Array, " f"]) -> Activations:
    """x + bias over the last dimension."""
    return x + bias.reshape((1,) * (x.ndim - 1) + bias.shape)


class Linear(nnx.Module):
    """A matmul with an optional bias, split over the tensor axes by columns, by rows or not at all."""

    def __init__(self, inputs: int, outputs: int, *, split: str | None = None, bias: bool = False) -> None:
        """Shapes: kernel `[inputs, outputs]`, bias `[outputs]` (added after the sum when split by rows)."""
        spec = {None: (None, None), "columns": (None, "tensor"), "rows": ("tensor", None)}[split]
        self.split = split
        self.kernel = weight((inputs, outputs), spec, inputs**-0.5)
        self.bias = constant(0.0, outputs, spec[1]) if bias else None

    def __call__(self, x: Activations, axes: Axes) -> Activations:
        """`[..., inputs]` to `[..., outputs]`."""
        y = split_matmul(x, self.kernel[...], split=self.split, axes=axes.tensor)
        return y if self.bias is None else add_bias(y, self.bias[...])


class Convolution(nnx.Module):
    """A square convolution over `[b, height, width, channels]`, split over channels like `Linear`."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        side: int = 3,
        stride: int = 1,
        split: str | None = None,
        zero: bool = False,
    ) -> None:
        """Shapes: kernel `[side, side, inputs, outputs]`, bias `[outputs]`; `zero` starts the kernel at 0."""
        spec = {None: (None, None), "columns": (None, "tensor"), "rows": ("tensor", None)}[split]
        self.split, self.stride = split, stride
        deviation = 0.0 if zero else (side * side * inputs) ** -0.5
        self.kernel = weight((side, side, inputs, outputs), (None, None, *spec), deviation)
        self.bias = constant(0.0, outputs, spec[1])

    def __call__(self, x: Float[Array, "b y x c"], axes: Axes) -> Float[Array, "b z w f"]:
        """Same padding; the sides shrink by the stride."""

        def contract(x: jax.Array, w: jax.Array) -> jax.Array:
            dimensions = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(x, w, (self.stride, self.stride), "SAME", dimension_numbers=dimensions)

        y = split_matmul(x, self.kernel[...], split=self.split, axes=axes.tensor, contract=contract)
        return add_bias(y, self.bias[...])


class RMSNorm(nnx.Module):
    """x / sqrt(mean square + epsilon) * scale, computed in float32 (arXiv 1910.07467)."""

    def __init__(self, width: int, *, epsilon: float = 1e-5) -> None:
        self.epsilon = epsilon
        self.scale = constant(1.0, width)

    def __call__(self, x: Activations) -> Activations:
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.epsilon)
        return scaled(wide, self.scale[...]).astype(x.dtype)


class LayerNorm(nnx.Module):
    """Zero mean, unit variance, scale and bias, computed in float32 (arXiv 1607.06450)."""

    def __init__(self, width: int, *, epsilon: float = 1e-6) -> None:
        self.epsilon = epsilon
        self.scale = constant(1.0, width)
        self.bias = constant(0.0, width)

    def __call__(self, x: Activations) -> Activations:
        wide = standardised(x.astype(jnp.float32), (-1,), self.epsilon)
        return add_bias(scaled(wide, self.scale[...]).astype(x.dtype), self.bias[...])


class GroupNorm(nnx.Module):
    """Normalises groups of channels over the whole image (arXiv 1803.08494); local groups when channels are split."""

    def __init__(self, width: int, groups: int, *, split: str | None = None, epsilon: float = 1e-5) -> None:
        self.group_width, self.epsilon = width // groups, epsilon
        self.scale = constant(1.0, width, split)
        self.bias = constant(0.0, width, split)

    def __call__(self, x: Float[Array, "b y x c"]) -> Float[Array, "b y x c"]:
        b, height, width, channels = x.shape
        grouped = x.astype(jnp.float32).reshape(b, height, width, channels // self.group_width, self.group_width)
        wide = standardised(grouped, (1, 2, 4), self.epsilon).reshape(x.shape)
        return add_bias(scaled(wide, self.scale[...]).astype(x.dtype), self.bias[...])


def standardised(x: Activations, over: tuple[int, ...], epsilon: float) -> Activations:
    """Zero mean and unit variance over some dimensions."""
    x = x - jnp.mean(x, axis=over, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=over, keepdims=True) + epsilon)


def scaled(x: Activations, scale: Float[Array, " d"]) -> Activations:
    """x * scale over the last dimension, in x's precision."""
    return x * scale.astype(x.dtype).reshape((1,) * (x.ndim - 1) + scale.shape)


class MLP(nnx.Module):
    """Two matmuls with an activation between them; the hidden width is split over the tensor axes."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        *,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.gelu,
    ) -> None:
        self.activation = activation
        self.up = Linear(inputs, hidden, split="columns", bias=True)
        self.down = Linear(hidden, outputs, split="rows", bias=True)

    def __call__(self, x: Activations, axes: Axes) -> Activations:
        return self.down(self.activation(self.up(x, axes)), axes)


class GatedMLP(nnx.Module):
    """down(activation(gate x) * up x) (arXiv 2002.05202); the hidden width is split over the tensor axes."""

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.silu,
        bias: bool = False,
    ) -> None:
        """SwiGLU by default; GEGLU with `jax.nn.gelu`."""
        self.activation = activation
        self.gate = Linear(width, hidden, split="columns", bias=bias)
        self.up = Linear(width, hidden, split="columns", bias=bias)
        self.down = Linear(hidden, width, split="rows", bias=bias)

    def __call__(self, x: Activations, axes: Axes) -> Activations:
        return self.down(self.activation(self.gate(x, axes)) * self.up(x, axes), axes)
