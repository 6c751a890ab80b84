"""Checkpoints that any plan of the same model can restore, and the end of a run by SIGTERM."""
