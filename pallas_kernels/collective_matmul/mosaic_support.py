"""Where the Hopper kernels can run, and with which tiles.

The functions return the reason why they cannot and what would help, or "" where they can.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pallas_kernels.target_device import target_device

USE_RING = 'use backend="ring"'
TILE_DEPTH = 64  # columns of x in a tile: 128 bytes of bfloat16, the widest swizzle
PIPELINE_DEPTH = 4  # tiles in flight: as many as fit, next to the results, into a Hopper multiprocessor's shared memory


@dataclasses.dataclass(frozen=True)
class WarpgroupTiles:
    """The tile of the product that a block of two warpgroups computes at a time.

    Attributes:
        rows, columns: Size of a warpgroup's tile of the product.
        columns_split: Whether the second warpgroup has the next columns; otherwise it has the next rows.
    """

    rows: int
    columns: int
    columns_split: bool

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of both warpgroups together."""
        return self.rows * (1 if self.columns_split else 2), self.columns * (2 if self.columns_split else 1)


# Largest first, because a large tile reads less for each product. This order is not tuned: nothing was measured.
_TILES = tuple(
    WarpgroupTiles(rows, columns, columns_split)
    for rows, columns in ((128, 128), (128, 64), (64, 128), (64, 64))
    for columns_split in (True, False)
)


def choose_tiles(rows: int, depth: int, widths: Sequence[int]) -> WarpgroupTiles | None:
    """The largest tiles that divide `[rows, depth] @ [depth, width]` for every width; None where none do."""
    for candidate in _TILES if depth % TILE_DEPTH == 0 else ():
        block_rows, block_columns = candidate.block
        if rows % block_rows == 0 and all(width % block_columns == 0 for width in widths):
            return candidate
    return None


def unsupported_shape_reason(rows: int, depth: int, widths: Sequence[int], dtype: Any) -> str:
    """Why a rank cannot multiply `[rows, depth]` by `[depth, width]` for these widths."""
    if np.dtype(dtype).name != "bfloat16":
        return f"the mosaic kernels multiply bfloat16, not {np.dtype(dtype).name}; cast, or {USE_RING}"
    if choose_tiles(rows, depth, widths) is None:
        return (
            f"no tile divides [{rows}, {depth}] @ [{depth}, {', '.join(map(str, widths))}]: the mosaic kernels need "
            f"the contracted size in {TILE_DEPTH}s, rows a rank in 64s and columns in 128s (or 128s and 64s); "
            f"pad, or {USE_RING}"
        )
    return ""


def one_rank_reason(axes: Sequence[str]) -> str:
    """The reason for axes of one rank."""
    return f"{' x '.join(axes) or 'no axis'} has one rank, which has nothing to exchange: use a plain matmul"


def automatic_axes_reason(axes: Sequence[str]) -> str:
    """The reason for a mesh some of whose axes are left to XLA."""
    return (
        f"the mosaic kernels need every mesh axis manual in jax.shard_map, which {', '.join(axes)} is not; {USE_RING}"
    )


def unsupported_placement_reason(
    ids: Sequence[int], sizes: dict[str, int], axes: tuple[str, ...], processes: int, platform: str, capability: str
) -> str:
    """Why the kernels cannot run on a mesh.

    Args:
        ids: Ids of the mesh's devices in row-major order.
        sizes: Sizes of the mesh's axes by name.
        axes: The axes of the ranks.
        processes: Number of processes that own the devices.
        platform: Platform of the devices.
        capability: Their compute capability, "9.0" for H100 and H200.

    Raises:
        ValueError: The mesh has no axis of that name.
    """
    if missing := [axis for axis in axes if axis not in sizes]:
        raise ValueError(f"the mesh has no axis {missing[0]!r}; it has {', '.join(sizes) or 'none'}")
    if math.prod(sizes[axis] for axis in axes) == 1:
        return one_rank_reason(axes)
    if list(ids) != list(range(len(ids))):
        return (
            f"the mesh holds the devices {', '.join(map(str, ids))}, and the mosaic kernels address peers by number: "
            f"they need one program over the whole mesh, devices 0 to {len(ids) - 1} in row-major order; {USE_RING}"
        )
    if processes > 1:
        return f"the mesh spans {processes} processes, and peers' memory is mapped within one; {USE_RING}"
    if platform not in ("gpu", "cuda"):
        return f"the devices are of platform {platform!r}, the mosaic kernels are for Hopper GPUs; {USE_RING}"
    if capability != "9.0":
        return f"the GPUs have compute capability {capability}, the mosaic kernels need 9.0 (H100, H200); {USE_RING}"
    return ""


def unsupported_traced_mesh_reason(mesh: jax.sharding.AbstractMesh, axes: tuple[str, ...]) -> str:
    """Why the kernels cannot run, as far as it is known in `jax.shard_map`, where devices have kinds but no ids."""
    if automatic := sorted(set(mesh.axis_names) - set(mesh.manual_axes)):
        return automatic_axes_reason(automatic)
    device = target_device(mesh)
    capability = "9.0" if device.is_hopper else f"of {device.kind or 'an unknown kind'}"
    return unsupported_placement_reason(range(mesh.size), dict(mesh.shape), axes, 1, device.platform, capability)


def unsupported_mesh_reason(mesh: jax.sharding.Mesh, axes: tuple[str, ...]) -> str:
    """Why the mosaic backend cannot run on a mesh, with its ranks along some of the axes."""
    devices = list(mesh.devices.flat)
    ids = [device.id for device in devices]
    processes = len({device.process_index for device in devices})
    capability = str(getattr(devices[0], "compute_capability", ""))
    return unsupported_placement_reason(ids, dict(mesh.shape), axes, processes, devices[0].platform, capability)
