"""Optimus's models simulated: a step of its baselines, and of the backbone alone, on the same rows and costs."""
