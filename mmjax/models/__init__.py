"""Flax modules, which depend on shapes and mesh axes, not on plans."""
