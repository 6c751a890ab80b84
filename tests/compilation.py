"""Compiling in less time, for tests whose programs run once."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def quick_compilation() -> Iterator[None]:
    """Programs first called inside are compiled in two thirds of the time, and run slower."""
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
