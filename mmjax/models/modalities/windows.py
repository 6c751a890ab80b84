"""Attention within square windows of images in most layers of an encoder, and within whole images in the others."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from configs.attention_windows import AttentionWindows
from mmjax.models.layers.context_parallel import mask_of_rank
from mmjax.models.layers.linear import NO_AXES
from mmjax.models.layers.positions import image_grid_sizes
from mmjax.models.layers.transformer import SharedInputs
from pallas_kernels.packed_attention import make_segment_mask
from pallas_kernels.packed_attention.api import Mask
from sharding.axes import Axes


class WindowInputs(NamedTuple):
    """What the layers of a stack read that differ in their masks; each gets its own as `SharedInputs`.

    Attributes:
        image: Of a layer whose patches attend to all of their image.
        window_mask: The mask of the other layers.
    """

    image: SharedInputs
    window_mask: Mask


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
) -> WindowInputs:
    """The masks of both kinds of layers; the arguments are `window_segments`', and the mesh axes."""
    windows = window_segments(positions, segments, side, merge)
    return WindowInputs(image, mask_of_rank(make_segment_mask(windows, ordered=False), axes))


def inputs_of_layer(inputs: WindowInputs, windows: AttentionWindows, layer: int | jax.Array) -> SharedInputs:
    """What a layer reads, by its number; in a scan over layers that is traced, and the mask is selected on the device.

    Args:
        inputs: What all layers read.
        windows: Says which layers attend to whole images.
        layer: Number of the layer.
    """
    if isinstance(layer, int):
        full: Any = layer in windows.full_layers
        return inputs.image if full else inputs.image._replace(mask=inputs.window_mask)
    full = jnp.any(layer == jnp.array(windows.full_layers, jnp.int32))
    mask = jax.tree.map(lambda whole, local: jnp.where(full, whole, local), inputs.image.mask, inputs.window_mask)
    return inputs.image._replace(mask=mask)
