"""What XLA's schedule for H100s overlaps, compiled without an H100."""
