"""Samples before and after decoding: formats, metadata, token layout."""
