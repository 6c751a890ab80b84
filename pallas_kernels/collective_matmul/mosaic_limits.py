"""Where the Hopper kernels can run, and with which tiles: every refusal says what is wrong and what to do."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hopper

INSTEAD = 'use backend="ring"'
TILE_DEPTH = 64  # columns of x in a tile: 128 bytes of bfloat16, the widest swizzle
STEPS = 4  # tiles in flight: what fits beside the results in the shared memory of a Hopper multiprocessor

# Rows and columns of a warpgroup's tile, and along which of the two its twin has the next; the widest first, because
# a wide tile reads less for each product. None of them is tuned: nothing was measured.
_TILES = tuple(
    (rows, columns, along)
    for rows, columns in ((128, 128), (128, 64), (64, 128), (64, 64))
    for along in (hopper.MatmulDimension.N, hopper.MatmulDimension.M)
)


def tiles(rows: int, depth: int, widths: Sequence[int]) -> hopper.TuningConfig | None:
    """The widest tiles that divide `[rows, depth] @ [depth, width]` for every width; None where none do."""
    if depth % TILE_DEPTH:
        return None
    for tile_rows, tile_columns, along in _TILES:
        config = hopper.TuningConfig(tile_rows, tile_columns, TILE_DEPTH, STEPS, wg_dimension=along)
        across, down = block_tile(config)
        if rows % down == 0 and all(width % across == 0 for width in widths):
            return config
    return None


def block_tile(config: hopper.TuningConfig) -> tuple[int, int]:
    """Columns and rows of the two compute warpgroups of a block together."""
    twins_down = config.wg_dimension == hopper.MatmulDimension.M
    return config.tile_n * (1 if twins_down else 2), config.tile_m * (2 if twins_down else 1)


def shape_refusal(rows: int, depth: int, widths: Sequence[int], dtype: Any) -> str:
    """Why these sizes a rank cannot be multiplied, or ""."""
    if dtype != jnp.bfloat16:
        return f"the mosaic kernels multiply bfloat16, not {jnp.dtype(dtype).name}; cast, or {INSTEAD}"
    if tiles(rows, depth, widths) is None:
        return (
            f"no tile divides [{rows}, {depth}] @ [{depth}, {', '.join(map(str, widths))}]: the mosaic kernels need "
            f"the contracted size in {TILE_DEPTH}s, rows a rank in 64s and columns in 128s (or 128s and 64s); "
            f"pad, or {INSTEAD}"
        )
    return ""


def placement_refusal(
    ids: Sequence[int], sizes: dict[str, int], axes: tuple[str, ...], processes: int, platform: str, capability: str
) -> str:
    """Why a mesh cannot run them, or "".

    Args:
        ids: The mesh's device ids, row-major.
        sizes: The mesh's axes.
        axes: Those that the ranks lie on.
        processes: How many processes hold the devices.
        platform: What the devices are.
        capability: Their compute capability, "9.0" for H100 and H200.

    Raises:
        ValueError: An axis that the mesh has not.
    """
    if missing := [axis for axis in axes if axis not in sizes]:
        raise ValueError(f"the mesh has no axis {missing[0]!r}; it has {', '.join(sizes) or 'none'}")
    if int(np.prod([sizes[axis] for axis in axes])) == 1:
        return f"the axes {axes} have one rank, which has nothing to exchange: a plain matmul is all there is to do"
    if list(ids) != list(range(len(ids))):
        return (
            f"the mesh holds the devices {', '.join(map(str, ids))}, and the mosaic kernels address peers by number: "
            f"they need one program over the whole mesh, devices 0 to {len(ids) - 1} in row-major order; {INSTEAD}"
        )
    if processes > 1:
        return f"the mesh spans {processes} processes, and peers' memory is mapped within one; {INSTEAD}"
    if platform not in ("gpu", "cuda"):
        return f"the devices are of platform {platform!r}, the mosaic kernels are for Hopper GPUs; {INSTEAD}"
    if capability != "9.0":
        return f"the GPUs have compute capability {capability}, the mosaic kernels need 9.0 (H100, H200); {INSTEAD}"
    return ""


def refusal(
    mesh: jax.sharding.Mesh, axes: tuple[str, ...], rows: int, depth: int, widths: Sequence[int], dtype: Any
) -> str:
    """Why the mosaic backend cannot run here, in plain words, or "" where it can.

    Args:
        mesh: The program's mesh, all of its axes.
        axes: Those over which x is gathered or the result scattered.
        rows: Rows of a rank's chunk (leading dimensions times its part of the sequence).
        depth: Contracted size on a rank.
        widths: Output columns on a rank, of each weight.
        dtype: Of x and the weights.

    Raises:
        ValueError: An axis that the mesh has not.
    """
    devices = list(mesh.devices.flat)
    ids = [device.id for device in devices]
    processes = len({device.process_index for device in devices})
    capability = str(getattr(devices[0], "compute_capability", ""))
    where = placement_refusal(ids, dict(mesh.shape), axes, processes, devices[0].platform, capability)
    return where or shape_refusal(rows, depth, widths, dtype)
