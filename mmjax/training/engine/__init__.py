"""A model on a plan: its stages on their devices, and what a training step runs."""
