"""A model on a plan: its stages on their devices, and the programs of a training step."""
