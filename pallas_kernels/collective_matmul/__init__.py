"""Matmuls whose weight is split over the tensor axes."""

from pallas_kernels.collective_matmul.reference import split_matmul

__all__ = ["split_matmul"]
