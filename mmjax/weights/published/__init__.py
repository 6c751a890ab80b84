"""Published architectures: a few rules per file of which tensors are which parameters, and config.json both ways."""
