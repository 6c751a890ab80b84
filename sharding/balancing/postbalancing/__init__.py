"""Which replica computes which item: OrchMLLM's post-balancing and node-wise placement (arXiv 2503.23830, 5 and 6).

An item is one sequence of a phase: the patches of an image, the frames of a clip, the tokens of a sample. Everything is
decided from the lengths of all items, so that every host decides the same.
"""
