"""Contestants timed in turns."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

TimedRun = Callable[[int], Any]
"""Does the work so many times, and returns when it is done."""


def in_turns(
    contestants: Mapping[str, TimedRun], rounds: int, inner: int = 1, left: Callable[[], float] = lambda: math.inf
) -> dict[str, list[float]]:
    """Seconds of one call of each by turn, after a call of each that is not counted.

    Args:
        contestants: By name.
        rounds: How often each is timed; fewer where the time is up, but at least one.
        inner: Calls each time.
        left: Seconds left.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run(1)
    for turn in range(rounds):
        if turn and left() <= 0:
            break
        for name, run in contestants.items():
            begin = time.perf_counter()
            run(inner)
            times[name].append((time.perf_counter() - begin) / inner)
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    """Of each over its turns."""
    return {name: statistics.median(each) for name, each in times.items()}


def timed_jax(compiled: Callable[..., Any], arguments: tuple) -> TimedRun:
    """A compiled program of jax."""
    import jax

    def run(times: int) -> None:
        for _ in range(times):
            output = compiled(*arguments)
        jax.block_until_ready(output)

    return run


def timed_torch(call: Callable[[], Any]) -> TimedRun:
    """A function of PyTorch."""
    import torch

    def run(times: int) -> None:
        for _ in range(times):
            call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return run
