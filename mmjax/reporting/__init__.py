"""The files of a run's folder, read back without jax: as Python objects and as a page.

`mmjax.open_run` and `mmjax.report` read them; `run_trainer.py` alone trains, and writes them.
"""
