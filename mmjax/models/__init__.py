"""Flax modules: they know shapes and the axes they are given, nothing of plans."""
