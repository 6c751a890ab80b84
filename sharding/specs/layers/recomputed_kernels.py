"""Which kernels of a layer each recomputation policy runs again before the backward, and their FLOPs.

MFU leaves these FLOPs out, and hardware FLOPs utilisation counts them. Cost models add the recomputed kernels to a
backward, and timelines report the FLOPs.
"""

from collections.abc import Mapping
from typing import NamedTuple, get_args

import numpy as np
from jaxtyping import Float

from sharding.specs.layers.layer import COLLECTIVE_KINDS, ComputeKind, Kernel, KernelKind, LayerSpec, RecomputePolicy

RECOMPUTED_KERNELS: Mapping[RecomputePolicy, tuple[KernelKind, ...]] = {
    "none": (),
    "selective": ("attention", "memory", "dispatch"),
    "offload": ("attention", "memory", "dispatch"),
    "full": (*get_args(ComputeKind), *COLLECTIVE_KINDS),
}
"""Kinds of kernels that run again, by policy: none, all but matmuls with weights (arXiv 2205.05198, section 5), or all.

The tokens that experts compute are not saved but sent again, unless all that is computed from them is saved.
"""


def runs_again(kernel: Kernel, recompute: RecomputePolicy) -> bool:
    """Whether a kernel runs again before the backward under a policy."""
    return kernel.always_recomputed or kernel.kind in RECOMPUTED_KERNELS[recompute]


class RecomputedFlops(NamedTuple):
    """Forward FLOPs that are computed again.

    Attributes:
        flops: FLOPs of real tokens, without padding; of causal attention, half of the squares.
        masked: FLOPs of causal attention's squares that `flops` leaves out.
    """

    flops: float = 0.0
    masked: float = 0.0


def recomputed_flops(layer: LayerSpec, load: Float[np.ndarray, " 4"], recompute: RecomputePolicy) -> RecomputedFlops:
    """Forward FLOPs that the backward of a layer computes again under a policy, over all devices of a replica."""
    kernels = [kernel for kernel in layer.kernels if runs_again(kernel, recompute)]
    return RecomputedFlops(
        float(sum(kernel.flops.evaluate(load) for kernel in kernels)),
        float(sum(kernel.masked_flops.evaluate(load) for kernel in kernels)),
    )
