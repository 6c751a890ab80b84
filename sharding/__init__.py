"""Planning in pure Python and NumPy: nothing here imports jax, except `sharding.runtime`."""
