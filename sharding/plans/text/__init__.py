"""Plans as text:

JSON objects read into records, ranges of devices, recomputation by layer, and bounds.
"""
