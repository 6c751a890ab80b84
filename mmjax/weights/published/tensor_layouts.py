"""Layouts: invertible conversions of NumPy arrays between published tensors and a model's parameters.

A layout converts a tuple of published tensors to a tuple of parameters and back, and gives the tensors' shapes from the
parameters' shapes, so that shapes are checked before anything is read. Numbers are moved and never changed: converting
there and back gives the same bits. Results are views wherever that is possible.
"""

import dataclasses
import math

import numpy as np

Shape = tuple[int, ...]
Arrays = tuple[np.ndarray, ...]


class TensorLayout:
    """Base class of layouts; each subclass converts a fixed number of tensors to a number of parameters."""

    def published_shapes(self, parameter_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """Returns the shapes of the published tensors, given the shapes of the parameters.

        Raises:
            ValueError: No published tensors become such parameters.
        """
        raise NotImplementedError

    def to_parameters(self, tensors: Arrays, parameter_shapes: tuple[Shape, ...]) -> Arrays:
        """Converts published tensors to parameters of these shapes."""
        raise NotImplementedError

    def to_published(self, parameters: Arrays) -> Arrays:
        """Converts parameters to published tensors; the inverse of `to_parameters`."""
        raise NotImplementedError

    def published_slice(self, parameter_slice: tuple[slice, ...]) -> tuple[slice, ...] | None:
        """Returns the slice of the published tensor that becomes a slice of the parameter.

        A slice that is read alone is converted like a whole tensor, with the shape of the slice.

        Returns:
            None where the tensor has to be read whole.
        """
        del parameter_slice
        return None


@dataclasses.dataclass(frozen=True)
class Transposed(TensorLayout):
    """One tensor with its dimensions in another order.

    Attributes:
        axes: Dimension i of the parameter is dimension `axes[i]` of the tensor.
    """

    axes: tuple[int, ...]

    @property
    def _inverse(self) -> tuple[int, ...]:
        return tuple(self.axes.index(axis) for axis in range(len(self.axes)))

    def published_shapes(self, parameter_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """See `TensorLayout`."""
        (shape,) = parameter_shapes
        if len(shape) != len(self.axes):
            raise ValueError(f"{shape} has {len(shape)} dimensions, the layout {len(self.axes)}")
        return (tuple(shape[axis] for axis in self._inverse),)

    def to_parameters(self, tensors: Arrays, parameter_shapes: tuple[Shape, ...]) -> Arrays:
        """See `TensorLayout`."""
        (tensor,) = tensors
        return (tensor.transpose(self.axes),)

    def to_published(self, parameters: Arrays) -> Arrays:
        """See `TensorLayout`."""
        (parameter,) = parameters
        return (parameter.transpose(self._inverse),)

    def published_slice(self, parameter_slice: tuple[slice, ...]) -> tuple[slice, ...]:
        """See `TensorLayout`."""
        return tuple(parameter_slice[axis] for axis in self._inverse)


@dataclasses.dataclass(frozen=True)
class Identity(TensorLayout):
    """One tensor that is the unchanged parameter."""

    def published_shapes(self, parameter_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """See `TensorLayout`."""
        (shape,) = parameter_shapes
        return (shape,)

    def to_parameters(self, tensors: Arrays, parameter_shapes: tuple[Shape, ...]) -> Arrays:
        """See `TensorLayout`."""
        (tensor,) = tensors
        return (tensor,)

    def to_published(self, parameters: Arrays) -> Arrays:
        """See `TensorLayout`."""
        return parameters

    def published_slice(self, parameter_slice: tuple[slice, ...]) -> tuple[slice, ...]:
        """See `TensorLayout`."""
        return parameter_slice


IDENTITY = Identity()
"""Embeddings, norms, biases, and GPT-2's Conv1D, which is `[inputs, outputs]` as kernels are here."""

LINEAR = Transposed((1, 0))
"""torch.nn.Linear's `[outputs, inputs]` to `[inputs, outputs]`."""

CONVOLUTION_1D = Transposed((2, 1, 0))
"""torch.nn.Conv1d's `[outputs, inputs, width]` to `[width, inputs, outputs]`."""

CONVOLUTION = Transposed((2, 3, 1, 0))
"""torch.nn.Conv2d's `[outputs, inputs, height, width]` to `[height, width, inputs, outputs]`."""


@dataclasses.dataclass(frozen=True)
class Reshaped(TensorLayout):
    """One tensor with the same numbers in the same order, of another shape (such as `[1, 1, d]`).

    Attributes:
        published_shape: Shape of the tensor.
    """

    published_shape: Shape

    def published_shapes(self, parameter_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """See `TensorLayout`."""
        (shape,) = parameter_shapes
        if math.prod(shape) != math.prod(self.published_shape):
            raise ValueError(f"{shape} and {self.published_shape} are not as many numbers")
        return (self.published_shape,)

    def to_parameters(self, tensors: Arrays, parameter_shapes: tuple[Shape, ...]) -> Arrays:
        """See `TensorLayout`."""
        (tensor,), (shape,) = tensors, parameter_shapes
        return (tensor.reshape(shape),)

    def to_published(self, parameters: Arrays) -> Arrays:
        """See `TensorLayout`."""
        (parameter,) = parameters
        return (parameter.reshape(self.published_shape),)


@dataclasses.dataclass(frozen=True)
class PatchConvolution(TensorLayout):
    """A patch embedding: a convolution whose stride is its window, as the kernel of a matmul over flattened windows.

    The tensor is `[outputs, channels, *window]`, the parameter `[window positions * channels, outputs]`; the channels
    of a window position are adjacent.

    Attributes:
        window: Sides of the window, such as `(14, 14)` for patches of 14 pixels.
        flattened: Whether the tensor is a matrix, `[outputs, channels * window positions]` (Llama 4).
    """

    window: tuple[int, ...]
    flattened: bool = False

    def published_shapes(self, parameter_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """See `TensorLayout`."""
        ((inputs, outputs),) = parameter_shapes
        channels, remainder = divmod(inputs, math.prod(self.window))
        if remainder:
            raise ValueError(f"{inputs} inputs are not whole windows of {self.window}")
        return ((outputs, inputs),) if self.flattened else ((outputs, channels, *self.window),)

    def to_parameters(self, tensors: Arrays, parameter_shapes: tuple[Shape, ...]) -> Arrays:
        """See `TensorLayout`."""
        (tensor,), (shape,) = tensors, parameter_shapes
        sides = range(2, 2 + len(self.window))
        windows = tensor.reshape((tensor.shape[0], -1, *self.window))  # [outputs, channels, *window]
        return (windows.transpose((*sides, 1, 0)).reshape(shape),)

    def to_published(self, parameters: Arrays) -> Arrays:
        """See `TensorLayout`."""
        (parameter,) = parameters
        windows = parameter.reshape((*self.window, -1, parameter.shape[-1]))  # [*window, channels, outputs]
        sides = len(self.window)
        tensor = windows.transpose((sides + 1, sides, *range(sides)))
        return (tensor.reshape((tensor.shape[0], -1)) if self.flattened else tensor,)


@dataclasses.dataclass(frozen=True)
class Fused(TensorLayout):
    """One tensor that is several parameters, one after the other along one of its dimensions.

    Attributes:
        axis: The dimension of the tensor.
        part_layout: Layout of all parameters, or one for each parameter.
        groups: Number of equal groups into which the dimension is divided; every group holds a share of each parameter
            in turn. 1 for plain concatenation, the number of key-value heads for InternLM2's `wqkv`.
    """

    axis: int = 0
    part_layout: TensorLayout | tuple[TensorLayout, ...] = LINEAR
    groups: int = 1

    def _part_layouts(self, parts: int) -> tuple[TensorLayout, ...]:
        return self.part_layout if isinstance(self.part_layout, tuple) else (self.part_layout,) * parts

    def _part_shapes(self, parameter_shapes: tuple[Shape, ...]) -> list[Shape]:
        """Returns the shapes of the parameters' slices of the tensor."""
        pairs = zip(self._part_layouts(len(parameter_shapes)), parameter_shapes, strict=True)
        return [layout.published_shapes((shape,))[0] for layout, shape in pairs]

    def _grouped(self, array: np.ndarray) -> np.ndarray:
        """Views the dimension as groups and positions within a group."""
        return array.reshape((*array.shape[: self.axis], self.groups, -1, *array.shape[self.axis + 1 :]))

    def published_shapes(self, parameter_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """See `TensorLayout`."""
        parts = self._part_shapes(parameter_shapes)
        other_dimensions = {(part[: self.axis], part[self.axis + 1 :]) for part in parts}
        if len(other_dimensions) > 1 or any(part[self.axis] % self.groups for part in parts):
            raise ValueError(f"{parts} do not join along dimension {self.axis} in {self.groups} groups")
        before, after = other_dimensions.pop()
        return ((*before, sum(part[self.axis] for part in parts), *after),)

    def to_parameters(self, tensors: Arrays, parameter_shapes: tuple[Shape, ...]) -> Arrays:
        """See `TensorLayout`."""
        (tensor,) = tensors
        parts = self._part_shapes(parameter_shapes)
        ends = np.cumsum([part[self.axis] // self.groups for part in parts])
        arrays = np.split(self._grouped(tensor), ends[:-1], axis=self.axis + 1)
        return tuple(
            layout.to_parameters((array.reshape(part),), (shape,))[0]
            for layout, array, part, shape in zip(
                self._part_layouts(len(parts)), arrays, parts, parameter_shapes, strict=True
            )
        )

    def to_published(self, parameters: Arrays) -> Arrays:
        """See `TensorLayout`."""
        pairs = zip(self._part_layouts(len(parameters)), parameters, strict=True)
        parts = [layout.to_published((parameter,))[0] for layout, parameter in pairs]
        joined = np.concatenate([self._grouped(part) for part in parts], axis=self.axis + 1)
        return (joined.reshape((*parts[0].shape[: self.axis], -1, *parts[0].shape[self.axis + 1 :])),)


@dataclasses.dataclass(frozen=True)
class Stacked(TensorLayout):
    """Several tensors that are the rows of one parameter: experts, `[E, inputs, outputs]`.

    Attributes:
        part_layout: Layout of every row.
    """

    part_layout: TensorLayout = LINEAR

    def published_shapes(self, parameter_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """See `TensorLayout`."""
        ((count, *shape),) = parameter_shapes
        return self.part_layout.published_shapes((tuple(shape),)) * count

    def to_parameters(self, tensors: Arrays, parameter_shapes: tuple[Shape, ...]) -> Arrays:
        """See `TensorLayout`."""
        ((_, *shape),) = parameter_shapes
        return (np.stack([self.part_layout.to_parameters((tensor,), (tuple(shape),))[0] for tensor in tensors]),)

    def to_published(self, parameters: Arrays) -> Arrays:
        """See `TensorLayout`."""
        (stack,) = parameters
        return tuple(self.part_layout.to_published((parameter,))[0] for parameter in stack)
