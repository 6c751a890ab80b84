"""An all-to-all of unequal numbers of rows between the ranks of a mesh axis, with gradients."""

from pallas_kernels.ragged_all_to_all.api import IMPLEMENTATIONS, exchange_rows, ragged_all_to_all

__all__ = ["IMPLEMENTATIONS", "exchange_rows", "ragged_all_to_all"]
