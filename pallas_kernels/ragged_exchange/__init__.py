"""Rows of unequal number between the ranks of a mesh axis, with gradients."""

from pallas_kernels.ragged_exchange.api import IMPLEMENTATIONS, ragged_exchange

__all__ = ["IMPLEMENTATIONS", "ragged_exchange"]
