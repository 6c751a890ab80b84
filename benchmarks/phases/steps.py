"""On the devices: a step of a configuration whose modules share rows, and with rows of their own, in turns."""

import statistics
import time
from collections.abc import Sequence

import jax
import numpy as np

from benchmarks.phases.figures import figure
from benchmarks.rows import Row
from data.packing.pipeline import training_batches
from mmjax.training.config import TrainConfig
from mmjax.training.engine.engine import Engine
from sharding.plans.plan import Plan

LOSS_GOAL = 1e-4
WARM_UP = 2


def step_rows(config: TrainConfig, plan: Plan, own_rows: Plan, steps: int) -> list[Row]:
    """A step whose items are dealt over rows of their own, over the step without that."""
    without, dealt = (np.array(each) for each in zip(*measure_steps(config, (plan, own_rows), steps), strict=True))
    ratio = statistics.median(dealt[:, 0] / without[:, 0])
    error = float(np.max(np.abs(dealt[:, 1] / without[:, 1] - 1)))
    note = ", ".join(f"{unit.rows} x {list(unit.capacities)} of {unit.name}" for unit in own_rows.units if unit.rows)
    return [
        figure("processor time of a step with rows of its own over shared rows", ratio, 1.0, f"{note}; {steps} steps"),
        figure("largest relative difference of a loss", error, LOSS_GOAL, "the same steps"),
    ]


def measure_steps(config: TrainConfig, plans: Sequence[Plan], steps: int) -> list[list[tuple[float, float]]]:
    """For each step, the processor seconds of this process and the loss, of each of the plans in turns."""
    batches = training_batches(config.data, config.model, config.dataset("train"))
    try:
        arrays = [next(batches).arrays for _ in range(WARM_UP + steps)]
    finally:
        batches.close()
    engines = [Engine(config.model, plan, arrays[0], config.engine_settings) for plan in plans]
    states = [engine.initial_state() for engine in engines]
    for number, engine in enumerate(engines):  # compiles the programs of every capacity, whichever steps need them
        for batch in arrays:
            states[number], _ = engine.executor.step(states[number], engine.place_batch(batch, 0))
        states[number] = engine.initial_state()
    measured = []
    for step, batch in enumerate(arrays):
        measured.append([])
        for number, engine in enumerate(engines):
            begin = time.process_time()
            states[number], summary = engine.executor.step(states[number], engine.place_batch(batch, step))
            jax.block_until_ready(vars(states[number]))
            measured[-1].append((time.process_time() - begin, float(np.sum(summary.losses))))
    return measured[WARM_UP:]
