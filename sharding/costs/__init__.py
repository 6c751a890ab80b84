"""Seconds and bytes: the interface of cost models, two cost models, bytes of layers; `stages/` for a plan."""
