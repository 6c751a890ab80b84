"""Data on CPU hosts: records, samples, packed rows and global batches, without jax."""
