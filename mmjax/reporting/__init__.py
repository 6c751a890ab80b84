"""What a run leaves in its folder, read back without jax: as Python objects and as a page."""
