"""Seconds of fused attention by head width and segment length, forward and backward apart.

`KernelCosts` times the kernels of kind `attention` by these functions.
"""

import numpy as np
from jaxtyping import Float

from configs.clusters import ClusterConfig
from configs.device_generations import DeviceGeneration
from sharding.specs.layers.layer import ZERO, Kernel, LoadColumn, Loads

BACKWARD_FLOPS = 2.5
"""FLOPs of the backward in units of the forward's: five products for two (FlashAttention-2, arXiv 2307.08691)."""

_HEAD_STEP = 32  # kernels exist for head widths that are multiples of it; others are padded


def attention_shares(device: DeviceGeneration, head_width: int) -> tuple[float, float]:
    """Shares of the peak that forward and backward reach for long sequences.

    Rates are interpolated between the widths of `DeviceGeneration.attention`, and proportional to the width below the
    first of them, where the exponentials, as many for every width, take the time. Padding counts as no arithmetic.
    """
    widths = [rate.head_width for rate in device.attention]
    step = min(_HEAD_STEP, widths[0])
    padded = -(-head_width // step) * step
    narrow = min(padded / widths[0], 1.0) * head_width / padded
    shares = (
        float(np.interp(padded, widths, [getattr(rate, way) for rate in device.attention])) * narrow
        for way in ("forward", "backward")
    )
    return next(shares), next(shares)


def attention_arithmetic(
    kernel: Kernel, loads: Loads, cluster: ClusterConfig
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """Seconds of the arithmetic of an attention kernel's forward and of its backward, over all tensor ranks.

    Every block of queries takes the time of one block of keys to start and to end. Under a causal mask the blocks on
    the diagonal are computed whole, which is half a block more for every query; of a window before each position, the
    blocks at its far end too.

    Args:
        kernel: The kernel.
        loads: Loads of a context-parallel rank.
        cluster: The devices.
    """
    device = cluster.generation
    # A causal kernel counts half of the squares: a block of keys for every query is twice as much of its FLOPs.
    is_causal = kernel.masked_flops != ZERO
    tokens, squared = loads[..., LoadColumn.TOKENS], loads[..., LoadColumn.SQUARED_LENGTHS]
    per_block = kernel.flops.squared_lengths * (3 if is_causal else 1)
    per_block += kernel.flops.local_pairs * (2 if is_causal else 1)
    extra = per_block * device.attention_block * tokens
    flops = kernel.flops.evaluate(loads) + np.where(squared > 0, extra, 0.0)
    peaks = [cluster.peak_flops * share for share in attention_shares(device, kernel.head_width)]
    return np.asarray(flops / peaks[0]), np.asarray(BACKWARD_FLOPS * flops / peaks[1])
