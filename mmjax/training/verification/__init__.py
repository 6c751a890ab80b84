"""Comparison of losses and gradients of layouts with a reference on one device (`python -m mmjax.verify`)."""
