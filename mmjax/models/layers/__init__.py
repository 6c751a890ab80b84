"""Layers that several modules share: attention, feed-forward layers, experts, norms, positions, adapters."""
