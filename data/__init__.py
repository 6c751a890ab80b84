"""Sources, samples, packing and global batches on CPU hosts: numpy, grain and Pillow, no jax."""
