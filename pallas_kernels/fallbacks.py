"""Warnings about implementations that were not taken: each is logged once, with the reason.

Attention and collective matmuls call `warn_once` where they fall back to another implementation.
"""

import functools

from absl import logging


@functools.cache
def warn_once(message: str) -> None:
    """Logs a warning unless this process has logged the same one before."""
    logging.warning("%s", message)
