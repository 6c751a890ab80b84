"""Losses and gradients of layouts against a reference on one device (`python -m mmjax.verify`)."""
