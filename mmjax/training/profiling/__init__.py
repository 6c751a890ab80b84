"""Measured times of layers and ops on this machine (`python -m mmjax.profile`)."""
