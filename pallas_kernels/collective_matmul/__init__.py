"""Matmuls whose weight is split over the tensor axes, overlapped with the collectives that they need."""

from pallas_kernels.collective_matmul.api import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from pallas_kernels.collective_matmul.sequence import gather_sequence, split_sequence
from pallas_kernels.collective_matmul.tiling import CollectiveTiling

__all__ = [
    "CollectiveTiling",
    "all_gather_matmul",
    "gather_sequence",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "split_sequence",
]
