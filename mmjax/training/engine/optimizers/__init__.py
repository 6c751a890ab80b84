"""The optimizer of each part: its algorithm and hyperparameters, and its application layer by layer."""
