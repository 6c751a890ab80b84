"""The wgrad of a grouped matmul as a Hopper kernel (Mosaic GPU).

Each block of threads computes one tile of one group's sum after another. The rows of a group are loaded in steps of
`STEP_ROWS`, which begin at multiples of it, as swizzled loads require; of the first and the last step, the rows of
other groups are zeroed in shared memory. Such a row may hold anything, even infinity, so both operands are zeroed, by
selection.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from pallas_kernels.target_device import target_device

STEP_ROWS, PIPELINE_DEPTH = 64, 4


def outer_product(
    x: Float[Array, "m k"],
    y: Float[Array, "m n"],
    group_sizes: Int[Array, " g"],
    tile_rows: int,
    tile_columns: int,
    interpret: Any = False,
) -> Float[Array, "g k n"]:
    """The sum over the rows of each group of x_row^T y_row; a group without rows has zeros.

    Args:
        x, y: Rows of all groups, one group after another.
        group_sizes: Rows of each group.
        tile_rows, tile_columns: Size of a tile of a sum; they divide k and n.
        interpret: Parameters of the interpreter, to run on a CPU.
    """
    (rows, inner), outer, groups = x.shape, y.shape[1], len(group_sizes)
    starts = jnp.cumsum(group_sizes) - group_sizes
    launched = plgpu.kernel(
        functools.partial(_kernel, rows=rows, tile=(tile_rows, tile_columns)),
        out_type=jax.ShapeDtypeStruct((groups, inner, outer), x.dtype),
        grid=(target_device().multiprocessors,),
        grid_names=("multiprocessor",),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
        interpret=interpret,
    )
    return launched(group_sizes.astype(jnp.int32), starts.astype(jnp.int32), x, y)


def _kernel(sizes: Any, starts: Any, x: Any, y: Any, sums: Any, *, rows: int, tile: tuple[int, int]) -> None:
    """All tiles of all groups, dealt to the blocks of threads."""
    groups, inner, outer = sums.shape
    transforms = _transforms(x.dtype)

    @plgpu.nd_loop((groups, inner // tile[0], outer // tile[1]), collective_axes="multiprocessor")
    def _(loop: plgpu.NDLoopInfo) -> None:
        group, row_tile, column_tile = loop.index
        before = jax.lax.rem(starts[group], STEP_ROWS)  # rows of other groups in the first step
        end = before + sizes[group]
        # The slice may end behind the last row; the pipeline loads no step that begins there.
        of_group = pl.ds(pl.multiple_of(starts[group] - before, STEP_ROWS), rows)

        def accumulate(total: Any) -> Any:
            def step(index: Any, x_tile: Any, y_tile: Any) -> None:
                first = index[0] * STEP_ROWS

                @pl.when((first < before) | (end < first + STEP_ROWS))
                def _() -> None:
                    for operand in (x_tile, y_tile):
                        _zero_outside(operand, before - first, end - first)
                    plgpu.commit_smem()

                plgpu.wgmma(total, _transposed(x_tile), y_tile)

            @pl.when(sizes[group] > 0)
            def _() -> None:
                plgpu.emit_pipeline(
                    step,
                    grid=(pl.cdiv(end, STEP_ROWS),),
                    in_specs=[
                        plgpu.BlockSpec(
                            (STEP_ROWS, width), lambda i, at=at: (i, at), delay_release=1, transforms=transforms
                        )
                        for width, at in zip(tile, (row_tile, column_tile), strict=True)
                    ],
                    max_concurrent_steps=PIPELINE_DEPTH,
                )(x.at[of_group, :], y.at[of_group, :])

            return total[...]

        total = pl.run_scoped(accumulate, plgpu.ACC(tile))  # pyright: ignore[reportPrivateImportUsage]

        @functools.partial(pl.run_scoped, stored=plgpu.SMEM(tile, dtype=sums.dtype, transforms=transforms))
        def _(stored: Any) -> None:
            stored[...] = total.astype(sums.dtype)
            plgpu.commit_smem()
            target = sums.at[group, pl.ds(row_tile * tile[0], tile[0]), pl.ds(column_tile * tile[1], tile[1])]
            plgpu.copy_smem_to_gmem(stored, target)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)


def _zero_outside(tile: Any, start: Any, end: Any) -> None:
    """Zeroes the rows of a tile in shared memory before row `start` and from row `end` on."""
    row = jax.lax.broadcasted_iota(jnp.int32, tile.shape, 0)
    tile[...] = jnp.where((row >= start) & (row < end), tile[...], jnp.zeros(tile.shape, tile.dtype))


def _transposed(tile: Any) -> Any:
    """The transpose of a tile in shared memory."""
    if hasattr(tile, "transpose"):
        return tile.transpose((1, 0))
    return plgpu.transpose_ref(tile, (1, 0))  # before jax 0.12


def _transforms(dtype: Any) -> tuple[Any, ...]:
    """The layout of 64 columns in shared memory that wgmma reads: 8-row tiles, swizzled over 128 bytes."""
    swizzle = plgpu.find_swizzle(64 * jnp.dtype(dtype).itemsize * 8)
    return plgpu.TilingTransform((8, swizzle // jnp.dtype(dtype).itemsize)), plgpu.SwizzleTransform(swizzle)
