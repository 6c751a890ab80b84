"""The grouped matmul by XLA's own `lax.ragged_dot`, where XLA has a grouped kernel for it.

On TPUs it has one. On NVIDIA GPUs cuDNN's is taken by the flag `FUSION_FLAG`, where cuDNN has a plan for the shapes
(openxla/xla pull request 40189). Everywhere else XLA multiplies all rows with the matrix of every group.
"""

import os

import jax
from jax import lax

from pallas_kernels.target_device import target_device

FUSION_FLAG = "--xla_gpu_experimental_use_ragged_dot_fusion"

_ROWS_CONTRACTED = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
)
_MATRICES_TRANSPOSED = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (2,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)


def product(x: jax.Array, matrices: jax.Array, group_sizes: jax.Array, *, transposed: bool = False) -> jax.Array:
    """See `tiled.product`."""
    if not transposed:
        return lax.ragged_dot(x, matrices, group_sizes)
    return lax.ragged_dot_general(x, matrices, group_sizes, _MATRICES_TRANSPOSED)


def outer_product(x: jax.Array, y: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """See `tiled.outer_product`."""
    return lax.ragged_dot_general(x, y, group_sizes, _ROWS_CONTRACTED)


def unsupported_reason(x: jax.Array, matrices: jax.Array) -> str:
    """Why XLA would multiply with the matrix of every group; "" where it has a grouped kernel."""
    del x, matrices
    device = target_device()
    if device.platform == "tpu":
        return ""
    if not device.is_gpu:
        return f"XLA has no grouped matmul for {device.platform}"
    enabled = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag.startswith(FUSION_FLAG)]
    if enabled and not enabled[-1].endswith("=false"):
        return ""
    return f"XLA multiplies with every group's matrix unless XLA_FLAGS has {FUSION_FLAG}=true"
