"""Layers shared by all modules. Weights are whole in the module's own description and local inside `jax.shard_map`.

Every parameter carries `split`: per dimension None, "tensor" or "expert", which says what parallelism divides it.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from configs.transformer import TransformerConfig
from mmjax.models.activations import ACTIVATIONS, Activations
from mmjax.models.matmuls import by_columns, row_sum, split_matmul
from sharding.axes import Axes

NO_AXES = Axes()


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
        self.adapter: nnx.Module | None = nnx.data(None)

    def __call__(self, x: Activations, axes: Axes) -> Activations:
        """`[..., inputs]` to `[..., outputs]`; an adapter (`mmjax.models.lora`) adds to it."""
        return self.finished(x, split_matmul(x, self.kernel[...], self.split, axes), axes)

    def finished(self, x: Activations, y: Activations, axes: Axes) -> Activations:
        """The projection of x, given its product with the kernel."""
        y = y if self.adapter is None else y + self.adapter(x, axes)
        return y if self.bias is None else add_bias(y, self.bias[...])


def project(projections: tuple[Linear, ...], x: Activations, axes: Axes) -> tuple[Activations, ...]:
    """Projections of the same x, all split by columns; positions that the ranks divide are gathered once for all."""
    ys = by_columns(x, tuple(of.kernel[...] for of in projections), axes)
    return tuple(of.finished(x, y, axes) for of, y in zip(projections, ys, strict=True))


class Convolution(nnx.Module):
    """A square convolution over `[b, height, width, channels]`, split over channels like `Linear`."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        side: int = 3,
        stride: int = 1,
        padding: tuple[int, int] | None = None,
        split: str | None = None,
        zero: bool = False,
    ) -> None:
        """Shapes: kernel `[side, side, inputs, outputs]`, bias `[outputs]`.

        `padding` is the rows and columns of zeros before and behind the map; None for as many as keep its sides (or
        divide them by the stride). `zero` starts the kernel at 0.
        """
        spec = {None: (None, None), "columns": (None, "tensor"), "rows": ("tensor", None)}[split]
        self.split, self.stride = split, stride
        self.padding = "SAME" if padding is None else (padding, padding)
        deviation = 0.0 if zero else (side * side * inputs) ** -0.5
        self.kernel = weight((side, side, inputs, outputs), (None, None, *spec), deviation)
        self.bias = constant(0.0, outputs, spec[1])

    def __call__(self, x: Float[Array, "b y x c"], axes: Axes) -> Float[Array, "b z w f"]:
        """The sides shrink by the stride."""
        strides, dimensions = (self.stride, self.stride), ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(x, self.kernel[...], strides, self.padding, dimension_numbers=dimensions)
        return add_bias(row_sum(y, self.split, axes), self.bias[...])


class RMSNorm(nnx.Module):
    """x / sqrt(mean square + epsilon) * scale, computed in float32 (arXiv 1910.07467)."""

    def __init__(self, width: int, *, epsilon: float = 1e-5, split: str | None = None) -> None:
        """`split`: the last dimension is divided over the tensor axes."""
        self.epsilon, self.split = epsilon, split
        self.scale = constant(1.0, width, split)

    def __call__(self, x: Activations, axes: Axes = NO_AXES) -> Activations:
        wide = x.astype(jnp.float32)
        mean = over_ranks(jnp.mean(jnp.square(wide), axis=-1, keepdims=True), self.split, axes)
        return scaled(wide * jax.lax.rsqrt(mean + self.epsilon), self.scale[...]).astype(x.dtype)


class LayerNorm(nnx.Module):
    """Zero mean, unit variance, scale and bias, computed in float32 (arXiv 1607.06450)."""

    def __init__(self, width: int, *, epsilon: float = 1e-6, bias: bool = True, split: str | None = None) -> None:
        """`split`: the last dimension is divided over the tensor axes."""
        self.epsilon, self.split = epsilon, split
        self.scale = constant(1.0, width, split)
        self.bias = constant(0.0, width, split) if bias else None

    def __call__(self, x: Activations, axes: Axes = NO_AXES) -> Activations:
        wide = x.astype(jnp.float32)
        wide = wide - over_ranks(jnp.mean(wide, axis=-1, keepdims=True), self.split, axes)
        variance = over_ranks(jnp.mean(jnp.square(wide), axis=-1, keepdims=True), self.split, axes)
        y = scaled(wide * jax.lax.rsqrt(variance + self.epsilon), self.scale[...]).astype(x.dtype)
        return y if self.bias is None else add_bias(y, self.bias[...])


def over_ranks(mean: jax.Array, split: str | None, axes: Axes) -> jax.Array:
    """The mean over all ranks of what each has the mean of its part of; parts are equal."""
    return jax.lax.pmean(mean, axes.tensor) if split and axes.tensor else mean


def norm_of(config: TransformerConfig, width: int, *, split: str | None = None) -> RMSNorm | LayerNorm:
    """A norm of the kind that a transformer has."""
    if config.norm == "rmsnorm":
        return RMSNorm(width, epsilon=config.norm_epsilon, split=split)
    return LayerNorm(width, epsilon=config.norm_epsilon, bias=config.norm_bias, split=split)


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
        activation: str = "gelu_tanh",
        bias: bool = True,
        inner_norm: nnx.Module | None = None,
    ) -> None:
        """`inner_norm` stands before the last matmul."""
        self.activation = ACTIVATIONS[activation]
        self.up = Linear(inputs, hidden, split="columns", bias=bias)
        self.inner_norm = inner_norm
        self.down = Linear(hidden, outputs, split="rows", bias=bias)

    def __call__(self, x: Activations, axes: Axes) -> Activations:
        hidden = self.activation(self.up(x, axes))
        return self.down(hidden if self.inner_norm is None else self.inner_norm(hidden, axes), axes)


class GatedMLP(nnx.Module):
    """down(activation(gate x) * up x) (arXiv 2002.05202); the hidden width is split over the tensor axes."""

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        activation: str = "silu",
        bias: bool = False,
        inner_norm: nnx.Module | None = None,
    ) -> None:
        """SwiGLU by default; GEGLU with `gelu`. `inner_norm` stands before the last matmul."""
        self.activation = ACTIVATIONS[activation]
        self.gate = Linear(width, hidden, split="columns", bias=bias)
        self.up = Linear(width, hidden, split="columns", bias=bias)
        self.inner_norm = inner_norm
        self.down = Linear(hidden, width, split="rows", bias=bias)

    def __call__(self, x: Activations, axes: Axes) -> Activations:
        gate, up = project((self.gate, self.up), x, axes)
        hidden = self.activation(gate) * up
        return self.down(hidden if self.inner_norm is None else self.inner_norm(hidden, axes), axes)
