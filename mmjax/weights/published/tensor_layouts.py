"""How tensors of a published checkpoint lie in ours: invertible layouts, NumPy views wherever that is possible.

A layout takes a tuple of their tensors to a tuple of ours and back, and tells their shapes from ours, so that shapes
are checked before anything is read. Every number is moved, none is changed: there and back gives the same bits.
"""

import dataclasses
import math

import numpy as np

Shape = tuple[int, ...]
Arrays = tuple[np.ndarray, ...]


class TensorLayout:
    """What every layout can do; each one below says how many tensors of theirs are how many of ours."""

    def published_shapes(self, ours: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """Shapes of their tensors, given the shapes of ours.

        Raises:
            ValueError: No tensors of theirs give such tensors of ours.
        """
        raise NotImplementedError

    def to_parameters(self, theirs: Arrays, shapes: tuple[Shape, ...]) -> Arrays:
        """Their tensors as ours, whose shapes are given."""
        raise NotImplementedError

    def to_published(self, ours: Arrays) -> Arrays:
        """The inverse of `to_parameters`."""
        raise NotImplementedError

    def published_slice(self, part: tuple[slice, ...]) -> tuple[slice, ...] | None:
        """The part of their tensor that is a part of ours; None where it has to be read whole.

        The part that is read is taken to ours like a whole tensor, with the shape of the part.
        """
        del part
        return None


@dataclasses.dataclass(frozen=True)
class Transposed(TensorLayout):
    """One tensor with its dimensions in another order; dimension i of ours is dimension `axes[i]` of theirs."""

    axes: tuple[int, ...]

    @property
    def _back(self) -> tuple[int, ...]:
        return tuple(self.axes.index(axis) for axis in range(len(self.axes)))

    def published_shapes(self, ours: tuple[Shape, ...]) -> tuple[Shape, ...]:
        (shape,) = ours
        if len(shape) != len(self.axes):
            raise ValueError(f"{shape} has {len(shape)} dimensions, the layout {len(self.axes)}")
        return (tuple(shape[axis] for axis in self._back),)

    def to_parameters(self, theirs: Arrays, shapes: tuple[Shape, ...]) -> Arrays:
        (array,) = theirs
        return (array.transpose(self.axes),)

    def to_published(self, ours: Arrays) -> Arrays:
        (array,) = ours
        return (array.transpose(self._back),)

    def published_slice(self, part: tuple[slice, ...]) -> tuple[slice, ...]:
        return tuple(part[axis] for axis in self._back)


@dataclasses.dataclass(frozen=True)
class Identity(TensorLayout):
    """One tensor, the same here and there."""

    def published_shapes(self, ours: tuple[Shape, ...]) -> tuple[Shape, ...]:
        (shape,) = ours
        return (shape,)

    def to_parameters(self, theirs: Arrays, shapes: tuple[Shape, ...]) -> Arrays:
        (array,) = theirs
        return (array,)

    def to_published(self, ours: Arrays) -> Arrays:
        return ours

    def published_slice(self, part: tuple[slice, ...]) -> tuple[slice, ...]:
        return part


IDENTITY = Identity()
"""Embeddings, norms, biases, and GPT-2's Conv1D, which is `[inputs, outputs]` as ours are."""

LINEAR = Transposed((1, 0))
"""torch.nn.Linear's `[outputs, inputs]` as `[inputs, outputs]`."""

CONVOLUTION_1D = Transposed((2, 1, 0))
"""torch.nn.Conv1d's `[outputs, inputs, width]` as `[width, inputs, outputs]`."""

CONVOLUTION = Transposed((2, 3, 1, 0))
"""torch.nn.Conv2d's `[outputs, inputs, height, width]` as `[height, width, inputs, outputs]`."""


@dataclasses.dataclass(frozen=True)
class InterleavedRotary(TensorLayout):
    """Channels of heads that rotary positions turn in pairs: of neighbours there, half a head apart here.

    Attributes:
        heads: How many there are.
        each: Layout of the tensor otherwise; its first dimension there is that of the channels.
    """

    heads: int
    base_layout: TensorLayout = LINEAR

    def published_shapes(self, ours: tuple[Shape, ...]) -> tuple[Shape, ...]:
        (shape,) = self.base_layout.published_shapes(ours)
        if shape[0] % (2 * self.heads):
            raise ValueError(f"{shape[0]} channels are not pairs of {self.heads} heads")
        return (shape,)

    def to_parameters(self, theirs: Arrays, shapes: tuple[Shape, ...]) -> Arrays:
        (array,) = theirs
        return self.base_layout.to_parameters((_swapped(array, (self.heads, -1, 2)),), shapes)

    def to_published(self, ours: Arrays) -> Arrays:
        (array,) = self.base_layout.to_published(ours)
        return (_swapped(array, (self.heads, 2, -1)),)


def _swapped(array: np.ndarray, parts: tuple[int, int, int]) -> np.ndarray:
    """The first dimension as three, of which the last two change places."""
    return array.reshape((*parts, *array.shape[1:])).swapaxes(1, 2).reshape(array.shape)


@dataclasses.dataclass(frozen=True)
class Reshaped(TensorLayout):
    """One tensor of the same numbers in the same order, whose shape there is `theirs` (such as `[1, 1, d]`)."""

    theirs: Shape

    def published_shapes(self, ours: tuple[Shape, ...]) -> tuple[Shape, ...]:
        (shape,) = ours
        if math.prod(shape) != math.prod(self.theirs):
            raise ValueError(f"{shape} and {self.theirs} are not as many numbers")
        return (self.theirs,)

    def to_parameters(self, theirs: Arrays, shapes: tuple[Shape, ...]) -> Arrays:
        (array,), (shape,) = theirs, shapes
        return (array.reshape(shape),)

    def to_published(self, ours: Arrays) -> Arrays:
        (array,) = ours
        return (array.reshape(self.theirs),)


@dataclasses.dataclass(frozen=True)
class PatchConvolution(TensorLayout):
    """A convolution's `[outputs, channels, *window]` as the kernel `[window positions * channels, outputs]` of a
    matmul with windows laid flat, the channels of a position adjacent: a patch embedding.

    Attributes:
        window: Its sides, such as `(14, 14)` for patches of 14 pixels.
    """

    window: tuple[int, ...]

    def published_shapes(self, ours: tuple[Shape, ...]) -> tuple[Shape, ...]:
        ((inputs, outputs),) = ours
        channels, rest = divmod(inputs, math.prod(self.window))
        if rest:
            raise ValueError(f"{inputs} inputs are not whole windows of {self.window}")
        return ((outputs, channels, *self.window),)

    def to_parameters(self, theirs: Arrays, shapes: tuple[Shape, ...]) -> Arrays:
        (array,), (shape,) = theirs, shapes
        sides = range(2, 2 + len(self.window))
        return (array.transpose((*sides, 1, 0)).reshape(shape),)

    def to_published(self, ours: Arrays) -> Arrays:
        (array,) = ours
        apart = array.reshape((*self.window, -1, array.shape[-1]))
        sides = len(self.window)
        return (apart.transpose((sides + 1, sides, *range(sides))),)


@dataclasses.dataclass(frozen=True)
class Fused(TensorLayout):
    """One tensor of theirs that is several of ours, one after the other along a dimension of theirs.

    Attributes:
        axis: The dimension of theirs.
        each: Layout of every part, or of each part its own.
        groups: Into how many equal groups the dimension falls, each of which holds a share of every part in turn:
            1 for plain concatenation, the number of key-value heads for InternLM2's `wqkv`.
    """

    axis: int = 0
    part_layout: TensorLayout | tuple[TensorLayout, ...] = LINEAR
    groups: int = 1

    def _layouts(self, parts: int) -> tuple[TensorLayout, ...]:
        return self.part_layout if isinstance(self.part_layout, tuple) else (self.part_layout,) * parts

    def _part_shapes(self, ours: tuple[Shape, ...]) -> list[Shape]:
        pairs = zip(self._layouts(len(ours)), ours, strict=True)
        return [layout.published_shapes((shape,))[0] for layout, shape in pairs]

    def published_shapes(self, ours: tuple[Shape, ...]) -> tuple[Shape, ...]:
        parts = self._part_shapes(ours)
        around = {(part[: self.axis], part[self.axis + 1 :]) for part in parts}
        if len(around) > 1 or any(part[self.axis] % self.groups for part in parts):
            raise ValueError(f"{parts} do not join along dimension {self.axis} in {self.groups} groups")
        before, after = around.pop()
        return ((*before, sum(part[self.axis] for part in parts), *after),)

    def to_parameters(self, theirs: Arrays, shapes: tuple[Shape, ...]) -> Arrays:
        (array,) = theirs
        parts = self._part_shapes(shapes)
        grouped = array.reshape((*array.shape[: self.axis], self.groups, -1, *array.shape[self.axis + 1 :]))
        ends = np.cumsum([part[self.axis] // self.groups for part in parts])
        split = np.split(grouped, ends[:-1], axis=self.axis + 1)
        rows = zip(self._layouts(len(parts)), split, parts, shapes, strict=True)
        return tuple(layout.to_parameters((piece.reshape(part),), (shape,))[0] for layout, piece, part, shape in rows)

    def to_published(self, ours: Arrays) -> Arrays:
        parts = [layout.to_published((array,))[0] for layout, array in zip(self._layouts(len(ours)), ours, strict=True)]
        grouped = [
            part.reshape((*part.shape[: self.axis], self.groups, -1, *part.shape[self.axis + 1 :])) for part in parts
        ]
        joined = np.concatenate(grouped, axis=self.axis + 1)
        return (joined.reshape((*parts[0].shape[: self.axis], -1, *parts[0].shape[self.axis + 1 :])),)


@dataclasses.dataclass(frozen=True)
class Stacked(TensorLayout):
    """Several tensors of theirs that are the rows of one of ours: experts, `[E, inputs, outputs]`.

    Attributes:
        each: Layout of every one.
    """

    part_layout: TensorLayout = LINEAR

    def published_shapes(self, ours: tuple[Shape, ...]) -> tuple[Shape, ...]:
        ((count, *shape),) = ours
        return self.part_layout.published_shapes((tuple(shape),)) * count

    def to_parameters(self, theirs: Arrays, shapes: tuple[Shape, ...]) -> Arrays:
        ((_, *shape),) = shapes
        return (np.stack([self.part_layout.to_parameters((array,), (tuple(shape),))[0] for array in theirs]),)

    def to_published(self, ours: Arrays) -> Arrays:
        (stack,) = ours
        return tuple(self.part_layout.to_published((array,))[0] for array in stack)
