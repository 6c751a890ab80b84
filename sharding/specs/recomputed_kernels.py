"""Which kernels of a layer each recomputation policy runs again before the backward."""

from collections.abc import Mapping
from typing import get_args

from sharding.specs.layer import COLLECTIVE_KINDS, ComputeKind, KernelKind, RecomputePolicy

RECOMPUTED_KERNELS: Mapping[RecomputePolicy, tuple[KernelKind, ...]] = {
    "none": (),
    "selective": ("attention", "memory"),
    "offload": ("attention", "memory"),
    "full": (*get_args(ComputeKind), *COLLECTIVE_KINDS),
}
"""None, all but matmuls with weights (arXiv 2205.05198, section 5), all."""
