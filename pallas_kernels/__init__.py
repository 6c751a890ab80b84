"""Kernels that overlap communication with arithmetic; one folder per op, the XLA reference beside them."""
