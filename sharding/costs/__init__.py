"""Seconds and bytes: the interface of cost models, two cost models, and what every op of a plan's step costs."""
