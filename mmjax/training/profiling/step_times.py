"""Seconds of whole training steps under several plans, on the same batches and the devices of this process.

Plans take turns, step by step, so that a machine that slows down or speeds up does so for all of them. A training state
exists only while its plan runs, so plans fit together wherever each fits alone.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping

import jax

from configs.common.errors import UserError
from data.packing.batch_spec import global_batch_spec
from data.packing.global_batch import GlobalBatch
from data.packing.row_order import RowOrderRequest
from mmjax.training.batches import open_batches, row_order_request
from mmjax.training.config import TrainConfig
from mmjax.training.engine.engine import Engine
from mmjax.weights.initialization import ParameterInitializer, parameter_initializer
from sharding.plans.plan import Plan


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """The seconds and losses of some steps under a plan.

    Attributes:
        seconds: Seconds of every timed step.
        losses: Losses by name of every timed step.
        error: Why the plan could not run, in one line; empty if it could. It then has neither seconds nor losses.
    """

    seconds: tuple[float, ...] = ()
    losses: tuple[dict[str, float], ...] = ()
    error: str = ""

    @property
    def median(self) -> float:
        """Median of the seconds; infinite for a plan that could not run."""
        return statistics.median(self.seconds) if self.seconds else math.inf


def time_steps(
    config: TrainConfig,
    plans: Mapping[str, Plan],
    steps: int,
    callback: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, StepTimes]:
    """Trains a step under every plan in each of some rounds, and times it.

    In its turn, a plan begins with the initial state and trains two steps on the batch of the round: one that is not
    timed, in which programs compile and get memory, and the one that is timed, from its dispatch until the whole new
    state is there. The batch is on the devices before. Nothing is written.

    Args:
        config: The run.
        plans: Plans by name. One that fails is left out of the rounds that follow.
        steps: Number of rounds, each with a batch of its own: the first ones of the run.
        callback: Called with the number of turns that are over, and the number of all turns.

    Returns:
        The times by name, in the order of `plans`.

    Raises:
        UserError: This is one of several processes.
        DataError: The data set does not fit the model or the data configuration.
    """
    if jax.process_count() > 1:
        raise UserError(
            f"plans are timed on the devices of one process, and this is one of {jax.process_count()}; time them on "
            "one host, without a launcher"
        )
    device_kind = jax.devices()[0].device_kind
    orders = {name: row_order_request(config, plan, device_kind) for name, plan in plans.items()}
    batches = {order: _first_batches(config, order, steps) for order in dict.fromkeys(orders.values())}
    initializer = parameter_initializer(config.model, config.seed, config.pretrained_weights, config.pretrained_changes)
    runs = {name: _PlanRun(config, plan, initializer) for name, plan in plans.items()}
    callback(0, steps * len(runs))
    for step in range(steps):
        for number, (name, run) in enumerate(runs.items(), start=1):
            run.take_turn(batches[orders[name]][step], step)
            callback(step * len(runs) + number, steps * len(runs))
    return {name: run.times for name, run in runs.items()}


def _first_batches(config: TrainConfig, order: RowOrderRequest | None, count: int) -> list[GlobalBatch]:
    """The first batches of a run, with their rows in an order."""
    batches = open_batches(config, config.dataset("train"), order)
    try:
        return [next(batches) for _ in range(count)]
    finally:
        batches.close()


class _PlanRun:
    """The turns of a plan.

    Args:
        config: The run.
        plan: The plan.
        initializer: Makes the initial parameters.

    Attributes:
        times: The times of its turns so far.
    """

    def __init__(self, config: TrainConfig, plan: Plan, initializer: ParameterInitializer) -> None:
        self._config, self._plan, self._initializer = config, plan, initializer
        self._engine: Engine | None = None
        self.times = StepTimes()

    def take_turn(self, batch: GlobalBatch, step: int) -> None:
        """Times a step on a batch; does nothing after a failure."""
        if self.times.error:
            return
        try:
            seconds, losses = self._timed_step(batch, step)
        except (UserError, jax.errors.JaxRuntimeError) as error:  # a plan that cannot run, or memory that is too small
            self._engine = None
            self.times = StepTimes(error=str(error).partition("\n")[0])
            return
        self.times = StepTimes((*self.times.seconds, seconds), (*self.times.losses, losses))

    def _timed_step(self, batch: GlobalBatch, step: int) -> tuple[float, dict[str, float]]:
        engine = self._engine = self._engine or self._make_engine()
        placed = engine.place_batch(batch.arrays, step)
        state, _ = engine.executor.step(engine.initial_state(self._initializer), placed)
        jax.block_until_ready(vars(state))  # and with it the batch
        begin = time.perf_counter()
        state, summary = engine.executor.step(state, placed)
        jax.block_until_ready((vars(state), vars(summary)))
        return time.perf_counter() - begin, engine.losses_by_name(summary)

    def _make_engine(self) -> Engine:
        batch_spec = global_batch_spec(self._config.data, self._config.model)
        return Engine(self._config.model, self._plan, batch_spec.arrays, self._config.engine_settings)
