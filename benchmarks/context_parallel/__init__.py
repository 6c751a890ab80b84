"""Context parallelism: how even the work of its ranks is, and what they hold."""
