"""Times the executor with several plans against one jitted program, in turns, and checks that the results agree."""

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from benchmarks.executor.one_jit import OneJit
from configs.architectures import ModelConfig
from mmjax.training.config import TrainConfig
from mmjax.training.engine.engine import Engine, HostBatch
from mmjax.training.engine.settings import EngineSettings
from sharding.plans.plan import Plan, single_device_plan
from sharding.specs.modules import module_graph

ONE_JIT, EXECUTOR, PLAN = "one jit", "executor, a device a module", "executor, the plan"
GOAL = 0.10
WARM_UP = 2
TOLERANCE = 1e-3
"""Largest relative difference of losses and norms. Rounding differs, and training amplifies the difference a little."""

Run = Callable[[HostBatch, int], tuple[Any, Any, Any]]
"""(arrays of a global batch, number of the step) -> (new state, losses, gradient norm), dispatched and not awaited."""


class DifferentResultsError(RuntimeError):
    """The timed programs computed different losses or gradient norms."""


@dataclasses.dataclass(frozen=True)
class StepTiming:
    """How long one step took, and its results.

    Attributes:
        dispatch: Seconds until the call returned.
        whole: Seconds until everything was computed.
        cpu: Processor seconds of all threads of this process.
        loss: Loss of the step.
        norm: Norm of its gradients.
    """

    dispatch: float
    whole: float
    cpu: float
    loss: float
    norm: float


def measure(config: TrainConfig, plans: Mapping[str, Plan], batches: Sequence[HostBatch], steps: int) -> dict[str, Any]:
    """Times the one program and the executor with each plan, taking turns.

    Args:
        config: The run; its plan is not used.
        plans: By name. On the first one, which the one program is made from, every module is on one stage.
        batches: Arrays of global batches, used in turn.
        steps: Steps to time.

    Raises:
        DifferentResultsError: Losses or norms differ.
    """
    settings = EngineSettings(config.optimizer, config.steps, config.seed, transport=config.transport)
    engines = {name: Engine(config.model, plan, batches[0], settings) for name, plan in plans.items()}
    first = next(iter(engines.values()))
    runs = {ONE_JIT: plain_run(OneJit(first, jax.devices()[0]))}
    runs |= {name: engine_run(engine) for name, engine in engines.items()}
    times: dict[str, list[StepTiming]] = {name: [] for name in runs}
    for step in range(WARM_UP + steps):
        for name, run in runs.items():
            times[name].append(time_step(run, batches[step % len(batches)], step))
    worst = check_same_work(times)
    return summary({name: timings[WARM_UP:] for name, timings in times.items()}) | {
        "worst_difference": worst,
        "microbatches": first.plan.microbatches,
        "ops": {name: len(engine.executor.training_schedule.ops) for name, engine in engines.items()},
        "plans": {name: json.loads(plan.to_json()) for name, plan in plans.items()},
    }


def one_device_per_module(model: ModelConfig, plan: Plan) -> Plan:
    """A plan with every module alone on its device, with the microbatches and the schedule of the given plan."""
    alone = single_device_plan(module_graph(model), plan.microbatches)
    units = tuple(dataclasses.replace(unit, devices=(number,)) for number, unit in enumerate(alone.units))
    return dataclasses.replace(alone, units=units, schedule=plan.schedule)


def engine_run(engine: Engine) -> Run:
    """Makes a function that runs one step of an engine, from arrays on the host to a new state."""
    state = engine.initial_state()

    def run(batch: HostBatch, step: int) -> tuple[Any, Any, Any]:
        nonlocal state
        state, decision = engine.executor.step(state, engine.place_batch(batch, step))
        return (state.master_weights, state.optimizer_state), decision.losses, decision.gradient_norm

    return run


def plain_run(one: OneJit) -> Run:
    """Makes a function that runs one step of the one program, from arrays on the host to a new state."""
    state = one.initial_state()

    def run(batch: HostBatch, step: int) -> tuple[Any, Any, Any]:
        nonlocal state
        state, loss, norm = one.step(state, one.place(batch, step))
        return state, loss, norm

    return run


def time_step(run: Run, batch: HostBatch, step: int) -> StepTiming:
    """Times one step until everything is computed."""
    begin, cpu = time.perf_counter(), time.process_time()
    everything = run(batch, step)
    dispatched = time.perf_counter()
    _, losses, norm = jax.block_until_ready(everything)
    end, cpu_end = time.perf_counter(), time.process_time()
    return StepTiming(dispatched - begin, end - begin, cpu_end - cpu, float(losses.sum()), float(norm))


def check_same_work(times: dict[str, list[StepTiming]]) -> float:
    """The largest relative difference of losses and norms from the one program's; raises where it is too large."""
    worst = 0.0
    for name, run in times.items():
        for step, (mine, plain) in enumerate(zip(run, times[ONE_JIT], strict=True)):
            for quantity in ("loss", "norm"):
                actual, expected = getattr(mine, quantity), getattr(plain, quantity)
                difference = abs(actual - expected) / abs(expected)
                if not difference <= TOLERANCE:
                    raise DifferentResultsError(
                        f"step {step}: the {quantity} is {actual} by {name} and {expected} by one jit"
                    )
                worst = max(worst, difference)
    return worst


def summary(times: dict[str, list[StepTiming]]) -> dict[str, Any]:
    """Medians in seconds; overheads from the ratios of steps that stood next to each other, less one."""

    def over(name: str, part: str) -> list[float]:
        pairs = zip(times[name], times[ONE_JIT], strict=True)
        return sorted(getattr(mine, part) / getattr(plain, part) - 1 for mine, plain in pairs)

    overhead = {}
    for name in times.keys() - {ONE_JIT}:
        ratios = over(name, "whole")
        overhead[name] = {
            "median": statistics.median(ratios),
            "middle_half": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
            "processor": statistics.median(over(name, "cpu")),
        }
    seconds = {
        name: {part: statistics.median(getattr(one, part) for one in run) for part in ("whole", "dispatch", "cpu")}
        for name, run in times.items()
    }
    return {"seconds": seconds, "overhead": overhead, "steps": len(times[ONE_JIT])}


def format_comparison(result: dict[str, Any]) -> str:
    """Formats the result for people."""
    lines = [f"{'milliseconds':30}{'step':>10}{'dispatch':>10}{'processor':>10}"]
    for name, case in result["seconds"].items():
        lines.append(f"{name:30}" + "".join(f"{case[part] * 1e3:10.1f}" for part in ("whole", "dispatch", "cpu")))
    for name in result["ops"]:
        case = result["overhead"][name]
        low, high = case["middle_half"]
        lines.append(
            f"{name}: {case['median']:+.1%} over {ONE_JIT} (middle half of the steps: {low:+.1%} to {high:+.1%}; "
            f"processor time: {case['processor']:+.1%}); {result['ops'][name]} ops a step"
        )
    lines += [
        f"the goal is at most {GOAL:.0%} for {EXECUTOR}",
        f"{result['steps']} steps each, in turns; {result['microbatches']} microbatches; "
        f"losses and norms agree to {result['worst_difference']:.0e}",
        ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
    ]
    return "\n".join(lines)
