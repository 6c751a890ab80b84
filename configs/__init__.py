"""Frozen dataclasses of architectures, clusters and workloads, and the gin files that ship with the project.

It is the lowest import level: every other package may import it, and it imports none of them.
"""
