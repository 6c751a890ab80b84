"""Layers that several modules share: attention, feed-forward layers, experts, norms, positions, adapters.

The blocks of `mmjax.models.modalities` consist of them. They receive `Axes` and call collectives over them.
"""
