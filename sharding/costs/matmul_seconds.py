"""Seconds of a matmul by its shape: output tiles, waves over the multiprocessors, split-k, and the fill of the loop.

`KernelCosts` calls `matmul_seconds` for matmuls and convolutions.
"""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from configs.clusters import ClusterConfig
from configs.device_generations import DeviceGeneration

_SPLITS = (1, 2, 4, 8)  # slices of the inner dimension that are summed apart (split-k)
_SUM_BYTES = 4  # partial sums are float32
_ROUNDING = 1e-9  # sizes are quotients of floats: what is above a whole number by less is that number
_AT_ONCE = 256  # matmuls, so that temporary arrays stay in the cache, and below the size that malloc maps anew


class MatmulSizes(NamedTuple):
    """Sizes of matmuls `[rows, inner] @ [inner, outer]`; the arrays broadcast against each other.

    Attributes:
        rows: Rows of each matmul.
        outer: Columns of its output.
        inner: Products of each of its sums.
        count: How many equal matmuls run as one kernel.
    """

    rows: Float[np.ndarray, "*#shape"]
    outer: Float[np.ndarray, "*#shape"]
    inner: Float[np.ndarray, "*#shape"]
    count: Float[np.ndarray, "*#shape"]


class _Variants(NamedTuple):
    """The kernels that a library chooses from: every tile with every split, v of them.

    Attributes:
        rows: Rows of the output tile.
        columns: Its columns.
        split: Slices of the inner dimension.
        step: Seconds of `inner_step` products of every element of the tile.
        fill: Seconds until the first of them, and after the last one.
        epilogue: Seconds of writing the tile.
    """

    rows: Float[np.ndarray, " v"]
    columns: Float[np.ndarray, " v"]
    split: Float[np.ndarray, " v"]
    step: Float[np.ndarray, " v"]
    fill: Float[np.ndarray, " v"]
    epilogue: Float[np.ndarray, " v"]


@functools.lru_cache(maxsize=64)
def _variants(device: DeviceGeneration, peak_flops: float, operand_bytes: int, element_bytes: int) -> _Variants:
    rows, columns, split = np.array([(*tile, parts) for tile in device.tiles for parts in _SPLITS], float).T
    flops, l2 = (whole / device.multiprocessors for whole in (peak_flops * device.loop_share, device.l2_bandwidth))
    arithmetic = 2 * rows * columns / flops
    loads = (rows + columns - np.maximum(rows, columns) * (1 - 1 / device.multicast)) * operand_bytes / l2
    written = rows * columns * np.where(split > 1, _SUM_BYTES, element_bytes)
    step = device.inner_step * np.maximum(arithmetic, loads)
    fill = 2 * device.tile_latency + device.inner_step * loads
    return _Variants(rows, columns, split, step, fill, written / l2)


def matmul_seconds(
    sizes: MatmulSizes, cluster: ClusterConfig, element_bytes: int, memory_bandwidth: float, *, fp8: bool = False
) -> Float[np.ndarray, "*shape"]:
    """Seconds of matmuls, without launch and without the traffic to memory that every matmul has.

    Each multiprocessor computes one output tile after the other; a wave is one tile on each:

        loop = ceil(inner / (split * step)) * max(arithmetic, loads from L2) per step
        fill = two latencies and the loads of the first step
        tile = fill + loop + epilogue, or max(loop, epilogue) where tiles overlap
        waves = ceil(count * ceil(rows / tile rows) * ceil(outer / tile columns) * split / multiprocessors)
        at_peak_clock = waves * tile + what adding the partial sums of a split moves

    of the best tile and split, as a library's heuristic would choose. Power grows with the share of the time in which
    products are computed, and with the third power of the clock (frequency times squared voltage). So the clock falls
    where the share is above the share at the power limit, `DeviceGeneration.power_share`:

        share = FLOPs / at_peak_clock / peak FLOP/s
        seconds = at_peak_clock * max(1, (share / power_share)^(1/3))

    Seconds never fall when `rows`, `outer`, `inner` or `count` grows, and never imply more than the peak.

    Args:
        sizes: The matmuls.
        cluster: The devices.
        element_bytes: Bytes of an element.
        memory_bandwidth: Bytes per second that kernels reach.
        fp8: Whether the devices multiply FP8 operands, which are rounded already; results have `element_bytes`.
    """
    rate, operand_bytes = (cluster.generation.fp8_rate, 1) if fp8 else (1.0, element_bytes)
    peak_flops = rate * cluster.peak_flops
    at_peak = 2 * sizes.rows * sizes.outer * sizes.inner * sizes.count / peak_flops
    flat = [np.broadcast_to(np.asarray(size, float), np.shape(at_peak)).reshape(-1) for size in sizes]
    seconds = np.empty(flat[0].size)
    for first in range(0, seconds.size, _AT_ONCE):
        block = slice(first, first + _AT_ONCE)
        some = MatmulSizes(*(size[block] for size in flat))
        variants = _variants(cluster.generation, peak_flops, operand_bytes, element_bytes)
        seconds[block] = _at_peak_clock(some, variants, cluster.generation, element_bytes, memory_bandwidth)
    seconds = seconds.reshape(np.shape(at_peak))
    # seconds * (share / power_share)^(1/3), written so that it grows with both
    throttled = np.cbrt(seconds**2 * at_peak / cluster.generation.power_share)
    return np.asarray(np.maximum(seconds, throttled))


def _at_peak_clock(
    sizes: MatmulSizes, variants: _Variants, device: DeviceGeneration, element_bytes: int, memory_bandwidth: float
) -> Float[np.ndarray, " n"]:
    """Seconds of each of n matmuls with the best tile and split, at the clock of the peak."""
    rows, outer, inner, count = (size[:, None] for size in sizes)
    loop = _up(inner / (variants.split * device.inner_step)) * variants.step
    tiles = count * _up(rows / variants.rows) * _up(outer / variants.columns) * variants.split
    once = variants.fill + variants.epilogue
    tile = np.maximum(loop, variants.epilogue) if device.overlaps_tiles else loop + once
    seconds = _up(tiles / device.multiprocessors) * tile
    if device.overlaps_tiles:
        seconds = seconds + once
    summed = np.where(variants.split > 1, variants.split * _SUM_BYTES + element_bytes, 0.0) / memory_bandwidth
    return np.asarray((seconds + count * rows * outer * summed).min(axis=-1))


def _up(quotient: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    return np.asarray(np.ceil(quotient * (1 - _ROUNDING)))
