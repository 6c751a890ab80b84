"""Layouts of tensors whose channels, or whose values of a patch, have another order than the parameter's."""

import dataclasses
from typing import ClassVar

import numpy as np

from mmjax.weights.published.tensor_layouts import LINEAR, Arrays, Shape, TensorLayout


@dataclasses.dataclass(frozen=True)
class ReorderedChannels(TensorLayout):
    """Base class of layouts that order the channels of every head in another way.

    Attributes:
        heads: Number of heads.
        base_layout: Layout besides the order; the first dimension of the tensor is the channels.
    """

    heads: int
    base_layout: TensorLayout = LINEAR

    divisor: ClassVar[int]
    """Number that divides the channels of a head."""

    def published_shapes(self, parameter_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """See `TensorLayout`."""
        (shape,) = self.base_layout.published_shapes(parameter_shapes)
        if shape[0] % (self.divisor * self.heads):
            raise ValueError(f"{shape[0]} channels are not {self.heads} heads of a multiple of {self.divisor} channels")
        return (shape,)

    def to_parameters(self, tensors: Arrays, parameter_shapes: tuple[Shape, ...]) -> Arrays:
        """See `TensorLayout`."""
        (tensor,) = tensors
        return self.base_layout.to_parameters((self.reorder(tensor),), parameter_shapes)

    def to_published(self, parameters: Arrays) -> Arrays:
        """See `TensorLayout`."""
        (tensor,) = self.base_layout.to_published(parameters)
        return (self.restore(tensor),)

    def reorder(self, tensor: np.ndarray) -> np.ndarray:
        """Reorders the channels to the parameter's order."""
        raise NotImplementedError

    def restore(self, tensor: np.ndarray) -> np.ndarray:
        """The inverse of `reorder`."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class InterleavedRotary(ReorderedChannels):
    """Channels of heads with rotary positions: the tensor pairs neighbours (2i, 2i + 1), the parameter (i, i + e/2).

    Attributes:
        rotated: Number e of the rotated channels, the last channels of a head; 0 for all.
    """

    rotated: int = 0

    divisor = 2

    def reorder(self, tensor: np.ndarray) -> np.ndarray:
        """See `ReorderedChannels`."""
        return self._swap(tensor, (-1, 2))

    def restore(self, tensor: np.ndarray) -> np.ndarray:
        """See `ReorderedChannels`."""
        return self._swap(tensor, (2, -1))

    def _swap(self, tensor: np.ndarray, factors: tuple[int, int]) -> np.ndarray:
        """Views the rotated channels of every head as two dimensions, and swaps them."""
        heads = tensor.reshape((self.heads, -1, *tensor.shape[1:]))
        kept, rotated = np.split(heads, [heads.shape[1] - self.rotated if self.rotated else 0], axis=1)
        pairs = rotated.reshape((self.heads, *factors, *tensor.shape[1:]))
        swapped = pairs.swapaxes(1, 2).reshape(rotated.shape)
        return (np.concatenate([kept, swapped], axis=1) if kept.size else swapped).reshape(tensor.shape)


class ColumnsFirst(ReorderedChannels):
    """Channels of heads: in the tensor, channels that rotate by columns come first; in the parameter, by rows.

    The channels are pairs (i, i + e/2); where the tensor pairs neighbours, this is within `InterleavedRotary`.
    """

    divisor = 4

    def reorder(self, tensor: np.ndarray) -> np.ndarray:
        """Exchanges the two halves of both halves of every head."""
        return tensor.reshape((2 * self.heads, 2, -1, *tensor.shape[1:]))[:, ::-1].reshape(tensor.shape)

    def restore(self, tensor: np.ndarray) -> np.ndarray:
        """See `ReorderedChannels`; the exchange is its own inverse."""
        return self.reorder(tensor)


@dataclasses.dataclass(frozen=True)
class ChannelsFirst(TensorLayout):
    """The values of a patch along one dimension: in the tensor channel by channel, in the parameter pixel by pixel.

    Attributes:
        pixels: Pixels of a patch.
        axis: The dimension of the tensor.
        base_layout: Layout besides this order.
    """

    pixels: int
    axis: int = 0
    base_layout: TensorLayout = LINEAR

    def _swap(self, array: np.ndarray, first: int, second: int) -> np.ndarray:
        """Views the dimension as two, and swaps them."""
        before, after = array.shape[: self.axis], array.shape[self.axis + 1 :]
        return array.reshape((*before, first, second, *after)).swapaxes(self.axis, self.axis + 1).reshape(array.shape)

    def published_shapes(self, parameter_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """See `TensorLayout`."""
        (shape,) = self.base_layout.published_shapes(parameter_shapes)
        if shape[self.axis] % self.pixels:
            raise ValueError(f"{shape[self.axis]} numbers are not whole patches of {self.pixels} pixels")
        return (shape,)

    def to_parameters(self, tensors: Arrays, parameter_shapes: tuple[Shape, ...]) -> Arrays:
        """See `TensorLayout`."""
        (tensor,) = tensors
        return self.base_layout.to_parameters((self._swap(tensor, -1, self.pixels),), parameter_shapes)

    def to_published(self, parameters: Arrays) -> Arrays:
        """See `TensorLayout`."""
        (tensor,) = self.base_layout.to_published(parameters)
        return (self._swap(tensor, self.pixels, -1),)
