"""Starting and supervising the processes of a run on this host; nothing here imports jax."""
