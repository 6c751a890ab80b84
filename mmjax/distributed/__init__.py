"""Before jax starts: the devices of this process, and its place among the processes of the run."""
