"""A matmul of groups of rows, each with a matrix of its own, with gradients: the experts of a mixture."""

from pallas_kernels.grouped_matmul.api import IMPLEMENTATIONS, grouped_matmul, use_grouped_matmul_implementation

__all__ = ["IMPLEMENTATIONS", "grouped_matmul", "use_grouped_matmul_implementation"]
