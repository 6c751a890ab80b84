"""Optimus's models simulated: colocated plans, the paper's baselines and the backbone alone, on the same rows and costs."""
