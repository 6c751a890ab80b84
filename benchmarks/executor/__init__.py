"""The overhead of the executor, against one `jit` of the same work."""
