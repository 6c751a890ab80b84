"""Flax modules, which depend on shapes and mesh axes, not on plans.

The engine (`mmjax.training.engine`) runs their layers by stages; `model.run_model` runs a whole model on one device.
"""
