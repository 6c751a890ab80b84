"""What the executor costs, against one `jit` of the same work."""
