"""Attention within square windows of images in most layers of a vision encoder, and in whole images in the others."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from mmjax.models.layers.context_parallel import mask_of_rank
from mmjax.models.layers.linear import NO_AXES
from mmjax.models.layers.positions import image_grid_sizes
from mmjax.models.layers.transformer import SharedInputs
from pallas_kernels.packed_attention import make_segment_mask
from sharding.axes import Axes


def window_segments(
    positions: Int[Array, "r p 2"], segments: Int[Array, "r p"], side: int, merge: int
) -> Int[Array, "r p"]:
    """Numbers of the windows of a row's images, from 1 and ascending from image to image; 0 outside of images.

    Within an image the windows of a band of rows alternate, as patches are in raster order of their cells. Attention
    therefore computes the blocks of whole bands: a window's side times the image's width.

    Args:
        positions: Row and column of each patch in its image.
        segments: Number of the image within the row that each patch belongs to.
        side: Side of a window in patches; a multiple of `merge`.
        merge: Side of a cell in patches.
    """
    most = segments.shape[1] // merge**2  # windows of an image: each has a cell
    columns = -(-image_grid_sizes(positions, segments)[..., 1] // side)
    numbers = positions[..., 0] // side * columns + positions[..., 1] // side
    return jnp.where(segments > 0, (segments - 1) * most + numbers + 1, 0)


def window_inputs(
    image: SharedInputs,
    positions: Int[Array, "r p 2"],
    segments: Int[Array, "r p"],
    side: int,
    merge: int,
    axes: Axes = NO_AXES,
) -> tuple[SharedInputs, SharedInputs]:
    """Returns the shared inputs of layers with attention to whole images, as given, and of layers within windows.

    The other arguments are `window_segments`', and the mesh axes.
    """
    windows = window_segments(positions, segments, side, merge)
    return image, image._replace(mask=mask_of_rank(make_segment_mask(windows, ordered=False), axes))
