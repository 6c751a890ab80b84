"""Workloads of samples: the rows that each grouping makes of the samples of a step, simulated and compared."""
