"""Which replica computes which item: OrchMLLM's post-balancing and node-wise placement (arXiv 2503.23830, 5 and 6).

An item is one sequence of a phase: an image's patches, a clip's frames, a sample's tokens. What every host needs to
decide is the lengths of all of them, so that all decide the same.
"""
