"""Dry runs: the programs of a plan compiled for GPUs that are not here, and what XLA says of them."""
