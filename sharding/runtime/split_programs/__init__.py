"""Splits a traced program in two: an early one for some of its results, and a late one for the others."""
