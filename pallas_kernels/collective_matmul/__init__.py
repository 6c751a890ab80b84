"""Matmuls whose weight is split over the tensor axes, beside the collectives that they need."""

from pallas_kernels.collective_matmul.api import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from pallas_kernels.collective_matmul.positions import divided, whole
from pallas_kernels.collective_matmul.tiling import Tiling

__all__ = ["Tiling", "all_gather_matmul", "divided", "matmul_all_reduce", "matmul_reduce_scatter", "whole"]
