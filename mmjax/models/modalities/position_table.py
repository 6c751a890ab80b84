"""Learned position tables, resized for images of any size; the patch embedding of vision encoders has one."""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from mmjax.models.layers.linear import normal_parameter
from mmjax.models.layers.positions import image_grid_sizes
from pallas_kernels.matmul import matmul

InterpolationFilter = Callable[[Float[Array, "*shape"]], Float[Array, "*shape"]]


class LearnedPositions2D(nnx.Module):
    """A learned vector for every cell of a square grid, interpolated for images of other sizes (ViT)."""

    def __init__(self, side: int, width: int, interpolation: str = "bicubic") -> None:
        """Creates the table, `[side, side, width]`; `VisionConfig.interpolation` lists how it is interpolated."""
        self.side = side
        self.corners = interpolation == "bilinear_corners"
        self.filter = ANTIALIASING_FILTERS.get(interpolation)
        self.table = normal_parameter((side, side, width), (None, None, None), 0.02)

    def __call__(self, positions: Int[Array, "r p 2"], segments: Int[Array, "r p"]) -> Float[Array, "r p d"]:
        """Embeds the patches of packed images.

        Args:
            positions: Row and column of each patch in its image; negative for tokens before the patches.
            segments: Number of the image within the row that each patch belongs to.
        """
        sizes, index = image_grid_sizes(positions, segments), jnp.maximum(positions, 0)
        if self.corners:
            last = jnp.maximum(sizes - 1, 1).astype(jnp.float32)
            coordinates = (index * (self.side - 1)).astype(jnp.float32) / last
            return _nearest_cells(self.table[...], coordinates, range(2), linear_filter)
        scales = self.side / sizes.astype(jnp.float32)  # table cells per patch
        coordinates = (index.astype(jnp.float32) + 0.5) * scales - 0.5
        if self.filter is None:
            return _nearest_cells(
                self.table[...], coordinates, range(-1, 3), functools.partial(cubic_filter, a=PYTORCH_CUBIC)
            )
        return _antialiased(self.table[...], coordinates, scales, self.filter)


def _nearest_cells(
    table: Float[Array, "side side d"],
    coordinates: Float[Array, "r p 2"],
    taps: range,
    interpolation_filter: InterpolationFilter,
) -> Float[Array, "r p d"]:
    """Interpolation between the nearest cells along rows and along columns, `taps` from the last one before a patch."""
    nearest = jnp.floor(coordinates)
    offsets = jnp.arange(taps.start, taps.stop)
    fraction = coordinates - nearest  # [r, p, 2]
    weights = interpolation_filter(fraction[..., None] - offsets[None, None, None, :].astype(jnp.float32))
    cells = jnp.clip(nearest[..., None].astype(jnp.int32) + offsets[None, None, None, :], 0, table.shape[0] - 1)
    embedding = jnp.zeros((*coordinates.shape[:2], table.shape[-1]), table.dtype)  # [r, p, d]
    for row in range(len(taps)):
        for column in range(len(taps)):
            weight = weights[..., 0, row] * weights[..., 1, column]  # [r, p]
            cell = table[cells[..., 0, row], cells[..., 1, column]]  # [r, p, d]
            embedding = embedding + weight[..., None].astype(table.dtype) * cell
    return embedding


def _antialiased(
    table: Float[Array, "side side d"],
    coordinates: Float[Array, "r p 2"],
    scales: Float[Array, "r p 2"],
    interpolation_filter: InterpolationFilter,
) -> Float[Array, "r p d"]:
    """Interpolation with a filter as wide as a patch where patches are larger than cells.

    How many cells the filter reaches depends on the image, so that all cells are weighted, by one matmul.
    """
    side, width = table.shape[1:]
    cells = jnp.arange(side, dtype=jnp.float32)[None, None, None, :]
    weights = interpolation_filter((cells - coordinates[..., None]) / jnp.maximum(scales, 1)[..., None])
    weights = weights / weights.sum(axis=-1, keepdims=True)  # [r, p, 2, side]
    products = weights[..., 0, :, None] * weights[..., 1, None, :]  # [r, p, side, side]
    return matmul(products.reshape(*products.shape[:2], -1).astype(table.dtype), table.reshape(-1, width))


def cubic_filter(distance: Float[Array, "*shape"], a: float) -> Float[Array, "*shape"]:
    """Keys's piecewise cubic: 1 at distance 0, and 0 at every other whole number and beyond 2."""
    distance = jnp.abs(distance)
    near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    far = a * (distance**3 - 5 * distance**2 + 8 * distance - 4)
    return jnp.where(distance <= 1, near, jnp.where(distance < 2, far, 0))


def linear_filter(distance: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Linear interpolation's filter: 1 at distance 0, falling to 0 at 1."""
    return jnp.maximum(1 - jnp.abs(distance), 0)


PYTORCH_CUBIC, PILLOW_CUBIC = -0.75, -0.5
"""The parameter a of bicubic interpolation in PyTorch, and in Pillow, which PyTorch's antialiased one follows."""

ANTIALIASING_FILTERS: dict[str, InterpolationFilter] = {
    "bicubic_antialiased": functools.partial(cubic_filter, a=PILLOW_CUBIC),
    "bilinear_antialiased": linear_filter,
}
"""Filters by the value of `VisionConfig.interpolation`."""
