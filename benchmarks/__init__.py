"""Measurements, each a command of its own; what they gave stands in `benchmarks/results/`."""
