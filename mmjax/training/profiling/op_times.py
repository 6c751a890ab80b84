"""Measured seconds of every op of a step on this machine, each run alone and waited for.

`shallow_runs.py` measures each of its plans by it.
"""

import collections
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from mmjax.training.engine.engine import Engine, HostBatch
from sharding.runtime.pipeline import PlacedBatch
from sharding.schedules.ops import PipelineOp

COMPILING_STEPS = 1


def measure_op_times(engine: Engine, batches: Sequence[HostBatch], steps: int) -> dict[PipelineOp, float]:
    """Measures the seconds of every op of a training step, run alone: the median over some steps.

    Devices that share the cores of a host cannot show how ops overlap, but they show the seconds of each op.

    Args:
        engine: A model on a plan, in one process.
        batches: Arrays of global batches, used in turn.
        steps: Number of steps that are timed, after one that compiles.
    """
    state = engine.initial_state()
    jax.block_until_ready(vars(state))
    times: dict[PipelineOp, list[float]] = collections.defaultdict(list)
    for step in range(COMPILING_STEPS + steps):
        placed = engine.place_batch(batches[step % len(batches)], step)
        stopwatch = _Stopwatch(placed)
        state, _ = engine.executor.step(state, placed, stopwatch)
        if step >= COMPILING_STEPS:
            for op, seconds in stopwatch.seconds.items():
                times[op].append(seconds)
    return {op: statistics.median(seconds) for op, seconds in times.items()}


class _Stopwatch:
    """Times ops one by one; the executor calls it after each."""

    def __init__(self, placed: PlacedBatch) -> None:
        jax.block_until_ready(placed)
        self.seconds: dict[PipelineOp, float] = {}
        self._begin = time.perf_counter()

    def __call__(self, op: PipelineOp, outputs: Any) -> None:
        jax.block_until_ready(outputs)
        end = time.perf_counter()
        jax.block_until_ready(outputs)  # going through all arrays takes time that is not the op's
        waiting = time.perf_counter() - end
        self.seconds[op] = max(end - self._begin - waiting, 0.0)
        self._begin = time.perf_counter()


def seconds_by_kind(seconds: Mapping[PipelineOp, float]) -> dict[str, float]:
    """Sums the seconds of ops by their kind."""
    sums: dict[str, float] = collections.defaultdict(float)
    for op, op_seconds in seconds.items():
        sums[op.kind] += op_seconds
    return dict(sums)
