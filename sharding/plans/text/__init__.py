"""Plans as text: JSON read into records, ranges of devices, recomputation by layer, and what bounds all of it."""
