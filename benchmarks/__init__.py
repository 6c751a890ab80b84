"""Measurements: every module with a `main`, and every folder, is a command; results are in `benchmarks/results/`."""
