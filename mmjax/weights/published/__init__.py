"""Published architectures, one file each: how their config.json and their tensors are ours."""
