"""Overlap of collectives and matmuls in XLA's schedule for H100s, compiled without an H100."""
