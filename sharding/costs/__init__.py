"""Seconds and bytes: the interface of cost models, two cost models, what layers hold; `stages/` for a plan."""
