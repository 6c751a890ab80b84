"""Parameters, linear projections and convolutions, of which all layers are made.

A Flax module describes whole weights; inside `jax.shard_map` it holds this device's shards of them. Every parameter
carries `split`, which names the axes that divide each dimension: None, "tensor" or "expert". The products themselves
are in `tensor_parallel.py`, which calls `pallas_kernels/matmul.py` and `pallas_kernels/collective_matmul/`.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from mmjax.models.layers.activations import Activations
from mmjax.models.layers.tensor_parallel import (
    WeightSplit,
    column_parallel_matmuls,
    reduce_row_parallel,
    tensor_parallel_matmul,
)
from pallas_kernels.fp8 import MatmulFormat
from sharding.axes import Axes

NO_AXES = Axes()
"""`Axes` of a single device: every tuple of mesh axes is empty."""

_KERNEL_SPLITS: dict[WeightSplit, tuple[str | None, str | None]] = {
    None: (None, None),
    "columns": (None, "tensor"),
    "rows": ("tensor", None),
}
"""Splits of the two dimensions (inputs, outputs) of a kernel."""


def normal_parameter(shape: tuple[int, ...], split: tuple[str | None, ...], stddev: float) -> nnx.Param:
    """A parameter whose initial values are normal with mean 0 (drawn by `init_layer_parameters`)."""
    return nnx.Param(jnp.zeros(shape), split=split, stddev=stddev, mean=0.0)


def constant_parameter(value: float, width: int, split: str | None = None) -> nnx.Param:
    """A parameter `[width]` whose initial values are all the same."""
    return nnx.Param(jnp.full((width,), value), split=(split,), stddev=0.0, mean=value)


def add_bias(x: Activations, bias: Float[Array, " f"]) -> Activations:
    """Adds a bias over the last dimension."""
    return x + bias.reshape((1,) * (x.ndim - 1) + bias.shape)


class Linear(nnx.Module):
    """y = x W + b, with W split over the tensor axes by columns, by rows or not at all."""

    def __init__(
        self, inputs: int, outputs: int, *, split: WeightSplit = None, bias: bool = False, zero: bool = False
    ) -> None:
        """Creates the parameters: kernel `[inputs, outputs]` and, if asked for, bias `[outputs]`.

        The bias of a row-parallel projection is added after the sum over ranks. With `zero`, the kernel starts at 0.
        """
        kernel_split = _KERNEL_SPLITS[split]
        self.split: WeightSplit = split
        self.matmul_format: MatmulFormat = "native"
        self.kernel = normal_parameter((inputs, outputs), kernel_split, 0.0 if zero else inputs**-0.5)
        self.bias = constant_parameter(0.0, outputs, kernel_split[1]) if bias else None
        self.adapter: nnx.Module | None = nnx.data(None)

    def __call__(self, x: Activations, axes: Axes) -> Activations:
        """Projects `[..., inputs]` to `[..., outputs]`; a LoRA adapter (`mmjax.models.layers.lora`) is added."""
        y = tensor_parallel_matmul(x, self.kernel[...], self.split, axes, self.matmul_format)
        return self.add_adapter_and_bias(x, y, axes)

    def add_adapter_and_bias(self, x: Activations, y: Activations, axes: Axes) -> Activations:
        """Adds LoRA adapter and bias to y, the product of x and the kernel."""
        y = y if self.adapter is None else y + self.adapter(x, axes)
        return y if self.bias is None else add_bias(y, self.bias[...])


def column_parallel_projections(projections: tuple[Linear, ...], x: Activations, axes: Axes) -> tuple[Activations, ...]:
    """Applies several column-parallel projections to the same x; divided positions are gathered once for all.

    All have the format of the first one.
    """
    kernels = tuple(projection.kernel[...] for projection in projections)
    ys = column_parallel_matmuls(x, kernels, axes, projections[0].matmul_format)
    return tuple(projection.add_adapter_and_bias(x, y, axes) for projection, y in zip(projections, ys, strict=True))


class Convolution(nnx.Module):
    """A square convolution over `[b, height, width, channels]`, whose channels are split as in `Linear`."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        side: int = 3,
        stride: int = 1,
        padding: tuple[int, int] | None = None,
        split: WeightSplit = None,
        zero: bool = False,
    ) -> None:
        """Creates the parameters: kernel `[side, side, inputs, outputs]` and bias `[outputs]`.

        Args:
            inputs: Input channels.
            outputs: Output channels.
            side: Side of the kernel.
            stride: Step between windows, along both sides.
            padding: Rows and columns of zeros before and after the map; None for as many as keep its sides (or divide
                them by the stride).
            split: Split of the channels over the tensor axes.
            zero: Whether the kernel starts at 0.
        """
        kernel_split = _KERNEL_SPLITS[split]
        self.split: WeightSplit = split
        self.stride = stride
        self.padding = "SAME" if padding is None else (padding, padding)
        stddev = 0.0 if zero else (side * side * inputs) ** -0.5
        self.kernel = normal_parameter((side, side, inputs, outputs), (None, None, *kernel_split), stddev)
        self.bias = constant_parameter(0.0, outputs, kernel_split[1])

    def __call__(self, x: Float[Array, "b y x c"], axes: Axes) -> Float[Array, "b z w f"]:
        """Convolves maps; the stride divides their sides."""
        strides, dimensions = (self.stride, self.stride), ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(x, self.kernel[...], strides, self.padding, dimension_numbers=dimensions)
        return add_bias(reduce_row_parallel(y, self.split, axes), self.bias[...])
