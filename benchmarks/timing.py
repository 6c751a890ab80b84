"""Times several programs by turns, so that their ratio means something on a machine that is shared."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

TimedRun = Callable[[int], Any]
"""Calls a program so many times, and returns when it is done."""


def in_turns(
    runs: Mapping[str, TimedRun], rounds: int, inner: int = 1, seconds_left: Callable[[], float] = lambda: math.inf
) -> dict[str, list[float]]:
    """Seconds of a call of each program, in every round, after one call of each that does not count.

    Args:
        runs: Programs by name.
        rounds: How often each is timed; fewer where the time is up, but at least once.
        inner: Calls of a program in a round.
        seconds_left: Seconds until the time is up.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(1)
    for round_index in range(rounds):
        if round_index and seconds_left() <= 0:
            break
        for name, run in runs.items():
            begin = time.perf_counter()
            run(inner)
            seconds[name].append((time.perf_counter() - begin) / inner)
    return seconds


def medians(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of every program over its rounds."""
    return {name: statistics.median(rounds) for name, rounds in seconds.items()}


def timed_jax(compiled: Callable[..., Any], arguments: tuple) -> TimedRun:
    """Runs a compiled program of jax."""
    import jax

    def run(times: int) -> None:
        output = None
        for _ in range(times):
            output = compiled(*arguments)
        jax.block_until_ready(output)

    return run


def timed_torch(call: Callable[[], Any]) -> TimedRun:
    """Runs a function of PyTorch."""
    import torch

    def run(times: int) -> None:
        for _ in range(times):
            call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return run
