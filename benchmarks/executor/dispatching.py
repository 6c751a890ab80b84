"""The host's own work: processor time of the thread that dispatches a step, for each kind of op.

Processor time of one thread counts neither waiting nor XLA's threads. What XLA computes on the calling thread, as it
does for programs on one CPU device, is counted, so that every stage of the plan has two devices. The calls of jitted
programs are timed apart: they are what jax itself takes, for arguments and results that are whole and in place.
"""

import collections
import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from benchmarks.executor.comparison import WARM_UP
from configs.architectures import ModelConfig
from mmjax.training.config import TrainConfig
from mmjax.training.engine.compilation import compile_step
from mmjax.training.engine.engine import Engine, HostBatch
from mmjax.training.engine.settings import EngineSettings
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.runtime.executor import Executor
from sharding.runtime.step_buffers import OpCall

GOAL = 150e-6
"""Seconds of processor time an op."""

MICROBATCHES = 2


@dataclasses.dataclass
class OpTimes:
    """Seconds of processor time that the dispatching thread spends on all ops of a kind, summed over each step.

    Attributes:
        ops: Ops of the kind in a step.
        all: Seconds of all ops, by step.
        calls: Seconds among them of the calls of programs, by step.
        arrays: Arguments and results of these calls in a step.
    """

    ops: int = 0
    all: list[float] = dataclasses.field(default_factory=list)
    calls: list[float] = dataclasses.field(default_factory=list)
    arrays: int = 0


def dispatch_plan(model: ModelConfig) -> Plan:
    """The quickstart's layout: an encoder and a generator on two replicas, a backbone of two stages on two ranks each.

    Args:
        model: A model with one encoder, and one generator or none.
    """
    (encoder,), backbone, generators = model.encoders, model.backbone, model.generators
    first = backbone.depth // 2

    def unit(name: str, devices: Sequence[int], layers: tuple[int, ...], dp: int = 1, tp: int = 1) -> UnitPlan:
        recompute = ("none",) * len(layers)
        return UnitPlan(
            name, (name,), tuple(devices), layers=layers, recompute=recompute, parallelism=Parallelism(dp=dp, tp=tp)
        )

    units = (
        unit(encoder.name, range(2), (encoder.depth,), dp=2),
        unit(backbone.name, range(2, 6), (backbone.depth - first, first), tp=2),
        *(unit(generator.name, range(6, 8), (1,), dp=2) for generator in generators),
    )
    return Plan(units, MICROBATCHES, "1f1b")


def measure_dispatch(config: TrainConfig, batches: Sequence[HostBatch], steps: int) -> dict[str, Any]:
    """Times the ops of steps on `dispatch_plan`; each step begins when the one before is finished.

    Args:
        config: The run; its plan is not used.
        batches: Arrays of global batches, used in turn.
        steps: Steps to time, after the warm-up steps.
    """
    settings = EngineSettings(config.optimizer, config.steps, config.seed, transport=config.transport)
    engine = Engine(config.model, dispatch_plan(config.model), batches[0], settings)
    compile_step(engine, lambda done, total: None)
    whole = [seconds for seconds, _ in _run_steps(engine, batches, steps)]
    with _timed_programs(engine.executor) as calls:
        by_kind = [times for _, times in _run_steps(engine, batches, steps, calls)][-1]
    ops = len(engine.executor.training_schedule.ops)
    return {
        "us_per_op": statistics.median(whole) / ops * 1e6,
        "goal_us": GOAL * 1e6,
        "ops": ops,
        "steps": steps,
        "kinds": {
            kind: {
                "ops": op_times.ops,
                "us_per_op": statistics.median(op_times.all) / op_times.ops * 1e6,
                "us_of_calls": statistics.median(op_times.calls) / op_times.ops * 1e6,
                "arrays_per_op": op_times.arrays / op_times.ops,
            }
            for kind, op_times in by_kind.items()
        },
    }


def _run_steps(
    engine: Engine, batches: Sequence[HostBatch], steps: int, calls: "list[tuple[float, int]] | None" = None
) -> Iterator[tuple[float, dict[str, OpTimes]]]:
    """Seconds of every step, and the times of its ops and of earlier steps, which are taken if the calls are given."""
    state, by_kind = engine.initial_state(), collections.defaultdict[str, OpTimes](OpTimes)
    for step in range(WARM_UP + steps):
        batch = jax.block_until_ready(engine.place_batch(batches[step % len(batches)], step))
        step_times = collections.defaultdict[str, list[tuple[float, float, int]]](list)
        since = time.thread_time()

        def note(op: Any, outputs: Any, times: Any = step_times) -> None:
            nonlocal since
            assert calls is not None
            seconds = time.thread_time() - since
            times[op.kind].append(
                (seconds, sum(call_seconds for call_seconds, _ in calls), sum(count for _, count in calls))
            )
            calls.clear()
            since = time.thread_time()

        begin = time.thread_time()
        state, summary = engine.executor.step(state, batch, None if calls is None else note)
        seconds = time.thread_time() - begin
        jax.block_until_ready((vars(state), summary))
        if step < WARM_UP:
            continue
        for kind, ops in step_times.items():
            op_times = by_kind[kind]
            op_times.ops, op_times.arrays = len(ops), sum(arrays for *_, arrays in ops)
            op_times.all.append(sum(op_seconds for op_seconds, *_ in ops))
            op_times.calls.append(sum(call_seconds for _, call_seconds, _ in ops))
        yield seconds, by_kind


@contextlib.contextmanager
def _timed_programs(executor: Executor) -> Iterator[list[tuple[float, int]]]:
    """Notes of every call of a stage's program its seconds, and how many arrays it takes and returns."""
    calls: list[tuple[float, int]] = []

    def timed(program: Callable) -> Callable:
        def call(*arguments: Any) -> Any:
            begin = time.thread_time()
            results = program(*arguments)
            seconds = time.thread_time() - begin
            calls.append((seconds, len(jax.tree.leaves((arguments, results)))))
            return results

        return call

    def run(self: OpCall) -> Any:
        return self.store(timed(self.call.program)(*self.call.arguments))

    stages, run_untimed = executor.stages, OpCall.run
    executor.stages = {
        stage_id: dataclasses.replace(
            stage, loss_and_norm=timed(stage.loss_and_norm), update=stage.update and timed(stage.update)
        )
        for stage_id, stage in stages.items()
    }
    OpCall.run = run
    try:
        yield calls
    finally:
        executor.stages, OpCall.run = stages, run_untimed


def format_dispatch(result: dict[str, Any]) -> str:
    """Formats the result for people."""
    columns = ("ops", "us an op", "of it calls", "arrays an op")
    lines = ["".join([f"{'':12}", *(f"{name:>14}" for name in columns)])]
    for kind, figures_of_kind in result["kinds"].items():
        figures = (figures_of_kind["us_per_op"], figures_of_kind["us_of_calls"], figures_of_kind["arrays_per_op"])
        lines.append(f"{kind:12}{figures_of_kind['ops']:14}" + "".join(f"{figure:14.0f}" for figure in figures))
    lines.append(
        f"{result['us_per_op']:.0f} us of the dispatching thread's processor time an op, {result['ops']} ops a step; "
        f"the goal is at most {result['goal_us']:.0f} us; medians of {result['steps']} steps"
    )
    return "\n".join(lines)
