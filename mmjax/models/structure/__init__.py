"""Modules, pieces and their parameters: the structure in which every architecture is described.

The engine divides modules by their pieces and layers; checkpoints and published weights use the parameter trees.
"""
