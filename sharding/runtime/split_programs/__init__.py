"""Splits a traced program in two: what some of its results need, and the rest, which runs later."""
