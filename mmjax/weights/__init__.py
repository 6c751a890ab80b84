"""Published weights: reading and writing safetensors, and converting tensors to a model's parameters and back.

The engine initialises parameters by `initialization.py`; the command `mmjax.convert` checks and exports checkpoints.
"""
