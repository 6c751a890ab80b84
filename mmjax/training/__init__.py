"""Training: configuration, data, the loop, evaluation."""
