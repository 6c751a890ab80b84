"""A plan laid out for a model: its stages, their devices and mesh axes, and which gradients they compute."""
