"""Context parallelism: how even the work of its ranks is, and how many bytes they hold."""
