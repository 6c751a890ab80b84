"""Modules, pieces and their parameters: the structure that every architecture is described in."""
