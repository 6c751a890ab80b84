"""The grouped matmul as Hopper kernels (Mosaic GPU); none of them was ever run on a GPU, and no tile is tuned.

The product and the dgrad are the kernel that jax ships (`ragged_dot_mgpu`). The wgrad is `mosaic_kernels.py`: jax's
`transposed_ragged_dot_mgpu` asks the default device for its number of multiprocessors, so that it can't be compiled
for a GPU that is described and not there.
"""

import jax
import numpy as np

from pallas_kernels.target_device import target_device
from pallas_kernels.varying import make_varying, varying_axes

BLOCK = 64
"""Both sizes of every matrix are multiples of it: the columns of a tile that 128 bytes of bfloat16 hold."""
TILE_ROWS, PIPELINE_DEPTH, COLUMN_BLOCKS = 128, 4, 1


def product(x: jax.Array, matrices: jax.Array, group_sizes: jax.Array, *, transposed: bool = False) -> jax.Array:
    """See `tiled.product`."""
    from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu  # imports all of Mosaic GPU

    y = ragged_dot_mgpu.ragged_dot(
        x,
        matrices,
        group_sizes=group_sizes,
        block_m=TILE_ROWS,
        block_n=_columns(matrices.shape[1 if transposed else 2]),
        block_k=BLOCK,
        max_concurrent_steps=PIPELINE_DEPTH,
        grid_block_n=COLUMN_BLOCKS,
        transpose_rhs=transposed,
    )
    return make_varying(y, tuple(sorted(varying_axes(x))))


def outer_product(x: jax.Array, y: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """See `tiled.outer_product`."""
    from pallas_kernels.grouped_matmul import mosaic_kernels  # imports all of Mosaic GPU

    sums = mosaic_kernels.outer_product(x, y, group_sizes, _columns(x.shape[1]), _columns(y.shape[1]))
    return make_varying(sums, tuple(sorted(varying_axes(x))))


def unsupported_reason(x: jax.Array, matrices: jax.Array) -> str:
    """Why the kernels can't multiply these, or ""."""
    device = target_device()
    if not (device.is_gpu and device.is_hopper):
        return f"the mosaic kernels are for Hopper GPUs, not {device.kind or device.platform}"
    if np.dtype(x.dtype).name not in ("bfloat16", "float16"):
        return f"the mosaic kernels multiply bfloat16 and float16, not {np.dtype(x.dtype).name}"
    _, inner, outer = matrices.shape
    if inner % BLOCK or outer % BLOCK:
        return f"the mosaic kernels need matrices of multiples of {BLOCK}, not [{inner}, {outer}]"
    return ""


def _columns(width: int) -> int:
    """Columns of a tile of a result of this width."""
    return 128 if width % 128 == 0 else BLOCK
