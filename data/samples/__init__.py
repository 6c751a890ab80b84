"""Samples before and after decoding: formats, metadata, token layout.

Data sets build metadata of samples, packing plans rows by their sizes, and loading decodes them into `Sample`.
"""
