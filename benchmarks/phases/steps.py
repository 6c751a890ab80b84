"""Time on the devices: steps of a configuration whose modules share rows, and with rows of their own, in turns."""

import statistics
import time
from collections.abc import Sequence

import jax
import numpy as np

from benchmarks.phases.figures import figure
from benchmarks.rows import Row
from data.packing.dealt_phases import HostArrays
from data.packing.pipeline import training_batches
from mmjax.training.config import TrainConfig
from mmjax.training.engine.engine import Engine
from sharding.plans.plan import Plan

LOSS_GOAL = 1e-4
WARM_UP = 2

Run = tuple[Plan, Sequence[HostArrays]]
"""A plan, and the arrays of its global batches."""


def step_rows(config: TrainConfig, plan: Plan, own_rows: Plan, steps: int) -> list[Row]:
    """A step whose items are dealt over rows of their own, over the step without that."""
    batches = training_batches(config.data, config.model, config.dataset("train"))
    try:
        arrays = [next(batches).arrays for _ in range(WARM_UP + steps)]
    finally:
        batches.close()
    ratio, error = compare_steps(config, ((own_rows, arrays), (plan, arrays)))
    note = ", ".join(
        f"{unit.phase_rows} x {list(unit.capacities)} of {unit.name}" for unit in own_rows.units if unit.phase_rows
    )
    return [
        figure("processor time of a step with rows of its own over shared rows", ratio, 1.0, f"{note}; {steps} steps"),
        figure("largest relative difference of a loss", error, LOSS_GOAL, "the same steps"),
    ]


def compare_steps(config: TrainConfig, runs: tuple[Run, Run]) -> tuple[float, float]:
    """Median processor time of the first run's steps over the second's, and the largest relative loss difference."""
    first, second = np.moveaxis(np.array(measure_steps(config, runs)), 1, 0)
    return statistics.median(first[:, 0] / second[:, 0]), float(np.max(np.abs(first[:, 1] / second[:, 1] - 1)))


def measure_steps(config: TrainConfig, runs: Sequence[Run]) -> list[list[tuple[float, float]]]:
    """For each step but the first ones, the processor seconds of this process and the loss, of each run in turns."""
    engines = [Engine(config.model, plan, arrays[0], config.engine_settings) for plan, arrays in runs]
    states = [engine.initial_state() for engine in engines]
    for number, engine in enumerate(engines):  # compiles the programs of every capacity, whichever steps need them
        for batch in runs[number][1]:
            states[number], _ = engine.executor.step(states[number], engine.place_batch(batch, 0))
        states[number] = engine.initial_state()
    measured = []
    for step, step_arrays in enumerate(zip(*(arrays for _, arrays in runs), strict=True)):
        measured.append([])
        for number, (engine, batch) in enumerate(zip(engines, step_arrays, strict=True)):
            begin = time.process_time()
            states[number], summary = engine.executor.step(states[number], engine.place_batch(batch, step))
            jax.block_until_ready(vars(states[number]))
            measured[-1].append((time.process_time() - begin, float(np.sum(summary.losses))))
    return measured[WARM_UP:]
