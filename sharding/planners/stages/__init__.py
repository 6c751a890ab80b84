"""Stages of a chain of modules: its layers as arrays, partitions of them, and the recomputation of each layer."""
