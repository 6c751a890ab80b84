"""Optimus's models simulated on the same rows and costs: colocated plans, the baselines and the backbone alone."""
