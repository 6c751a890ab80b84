"""Generation by trained models on one device, whatever plan trained them: text by decoding, images by diffusion.

`mmjax.generate`, `mmjax.draw` and the command `mmjax.generate` call it; a training run does at every evaluation
(`sample_log.py`).
"""
