"""The work of a step on this machine: every op run alone and waited for, as the simulator predicts it."""

import collections
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from mmjax.training.engine.engine import Engine, HostBatch
from sharding.schedules.ops import PipelineOp

WARM_UP = 1


def measure_op_times(engine: Engine, batches: Sequence[HostBatch], steps: int) -> dict[PipelineOp, float]:
    """Seconds of every part of a training step by itself: the median over some steps.

    Devices that share a host's cores cannot show how ops overlap; what each of them takes they can.

    Args:
        engine: A model on a plan; one process.
        batches: Arrays of global batches, used in turn.
        steps: Steps to time, after one that compiles.
    """
    state = engine.initial_state()
    jax.block_until_ready(vars(state))
    times: dict[PipelineOp, list[float]] = collections.defaultdict(list)
    for step in range(WARM_UP + steps):
        placed = engine.place_batch(batches[step % len(batches)], step)
        watch = _Stopwatch(placed)
        state, _ = engine.executor.step(state, placed, watch)
        if step >= WARM_UP:
            for part, seconds in watch.seconds.items():
                times[part].append(seconds)
    return {part: statistics.median(seconds) for part, seconds in times.items()}


class _Stopwatch:
    """Times parts one by one."""

    def __init__(self, placed: Any) -> None:
        jax.block_until_ready([vars(microbatches) for microbatches in placed.values()])
        self.seconds: dict[PipelineOp, float] = {}
        self._begin = time.perf_counter()

    def __call__(self, part: PipelineOp, in_flight: Any) -> None:
        jax.block_until_ready(in_flight)
        done = time.perf_counter()
        jax.block_until_ready(in_flight)  # looking through all arrays takes time of its own, which is no work
        looked = time.perf_counter() - done
        self.seconds[part] = max(done - self._begin - looked, 0.0)
        self._begin = time.perf_counter()


def seconds_by_kind(seconds: Mapping[PipelineOp, float]) -> dict[str, float]:
    """Sums over the parts of each kind."""
    sums: dict[str, float] = collections.defaultdict(float)
    for part, each in seconds.items():
        sums[part.kind] += each
    return dict(sums)
