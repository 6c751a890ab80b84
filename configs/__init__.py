"""Frozen dataclasses of architectures, clusters and workloads, and the gin files that ship with the project."""
