"""FLOPs of what a step computes a second time, which MFU leaves out and hardware FLOPs utilisation counts."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sharding.specs.layer import LayerSpec, RecomputePolicy
from sharding.specs.recomputed_kernels import RECOMPUTED_KERNELS


class RecomputedFlops(NamedTuple):
    """Forward FLOPs that are computed again.

    Attributes:
        flops: Those of real tokens, without padding; of causal attention, half of the squares.
        masked: What `flops` leave out of causal attention's squares.
    """

    flops: float = 0.0
    masked: float = 0.0


def recomputed_flops(layer: LayerSpec, load: Float[np.ndarray, " 3"], recompute: RecomputePolicy) -> RecomputedFlops:
    """What the backward of a layer computes again under a policy, over all devices of a replica."""
    kernels = [kernel for kernel in layer.kernels if kernel.kind in RECOMPUTED_KERNELS[recompute]]
    return RecomputedFlops(
        float(sum(kernel.flops.at(load) for kernel in kernels)),
        float(sum(kernel.masked_flops.at(load) for kernel in kernels)),
    )
