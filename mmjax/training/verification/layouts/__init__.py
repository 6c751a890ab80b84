"""The layouts that `python -m mmjax.verify` compares: by default, and at random."""
