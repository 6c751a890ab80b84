"""Times a deep backbone's pipeline as one program a step and as dispatched programs, in turns, and what they compile.

Both run the same microbatches on as many devices with interleaved 1F1B's order of forwards and backwards; the results
are compared. Programs dispatched are counted by the ops of the schedule that returned arrays.
"""

import statistics
import time
from typing import Any

import jax
import numpy as np

from benchmarks.executor.comparison import TOLERANCE, WARM_UP, DifferentResultsError, StepTiming, engine_run, time_step
from configs.architectures import BackboneConfig, ModelConfig
from configs.optimizer import OptimizerConfig
from mmjax.training.engine.compilation import compile_step
from mmjax.training.engine.engine import Engine, HostBatch
from mmjax.training.engine.settings import EngineSettings
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import ExecutorName, UnitPlan

MICROBATCHES, RANKS, DEPTH, TOKENS = 16, 4, 16, 32
MODEL = ModelConfig((), BackboneConfig(vocabulary=256, width=64, depth=DEPTH, heads=4, kv_heads=4, ffn=128), ())
EXECUTORS: tuple[ExecutorName, ...] = ("dispatched", "compiled")
CASES: list[tuple[ExecutorName, int]] = [(executor, chunks) for chunks in (1, 2) for executor in EXECUTORS]


def pipeline_plan(executor: ExecutorName, chunks: int) -> Plan:
    """A backbone alone on four pipeline ranks."""
    stages = RANKS * chunks
    unit = UnitPlan(
        "backbone",
        ("backbone",),
        tuple(range(RANKS)),
        layers=(DEPTH // stages,) * stages,
        recompute=("none",) * stages,
        executor=executor,
        parallelism=Parallelism(chunks=chunks),
    )
    return Plan((unit,), MICROBATCHES, "1f1b" if chunks == 1 else "interleaved")


def text_batch(rows: int = MICROBATCHES, seed: int = 0) -> HostBatch:
    """A global batch of rows of one sample each."""
    random = np.random.default_rng(seed)
    shape = (rows, TOKENS)
    positions = np.broadcast_to(np.arange(TOKENS, dtype=np.int32), shape)
    tokens, targets = random.integers(0, MODEL.backbone.vocabulary, (2, *shape)).astype(np.int32)
    return {
        MODEL.backbone.name: {
            "tokens": tokens,
            "targets": targets,
            "weights": np.full(shape, 1 / (rows * TOKENS), np.float32),
            "segments": np.ones(shape, np.int32),
            "branches": np.zeros(shape, np.int32),
            "positions": positions,
        }
    }


def measure_pipelines(steps: int) -> dict[str, Any]:
    """Times all cases step by step in turns.

    Args:
        steps: Steps to time, after the warm-up steps.

    Raises:
        DifferentResultsError: Losses or norms differ.
    """
    batch, results, runs = text_batch(), {}, {}
    for executor, chunks in CASES:
        engine = Engine(MODEL, pipeline_plan(executor, chunks), batch, EngineSettings(OptimizerConfig(), steps=1000))
        name = f"{executor}, {chunks} chunk{'s' * (chunks > 1)}"
        programs: list[int] = []
        begin = time.perf_counter()
        compile_step(engine, lambda done, total, counts=programs: counts.append(total))
        compiling = time.perf_counter() - begin
        results[name] = {
            "compiled_programs": programs[-1],
            "compilation": compiling,
            "dispatches": dispatches(engine, batch),
        }
        runs[name] = engine_run(engine)
    times: dict[str, list[StepTiming]] = {name: [] for name in runs}
    for step in range(WARM_UP + steps):
        for name, run in runs.items():
            times[name].append(time_step(run, batch, step))
    check_same_work(times)
    for name, timings in times.items():
        timed = timings[WARM_UP:]
        results[name] |= {
            part: statistics.median(getattr(one, part) for one in timed) for part in ("whole", "dispatch", "cpu")
        }
    return {"cases": results, "steps": steps, "microbatches": MICROBATCHES, "ranks": RANKS, "layers": DEPTH}


def dispatches(engine: Engine, batch: HostBatch) -> int:
    """Programs that a step dispatches: the ops that return arrays; the norm is one, and one more on each stage."""
    counts: list[int] = []

    def count(op: Any, outputs: Any) -> None:
        counts.append(bool(jax.tree.leaves(outputs)) * (1 + len(engine.stages) * (op.kind == "global_norm")))

    engine.executor.step(engine.initial_state(), engine.place_batch(batch, 0), count)
    return sum(counts)


def check_same_work(times: dict[str, list[StepTiming]]) -> None:
    """Raises DifferentResultsError if a case has another loss or norm than the first."""
    first, *others = times
    for name in others:
        for step, (one, other) in enumerate(zip(times[first], times[name], strict=True)):
            for quantity in ("loss", "norm"):
                expected, actual = getattr(one, quantity), getattr(other, quantity)
                if not abs(actual - expected) <= TOLERANCE * abs(expected):
                    raise DifferentResultsError(
                        f"step {step}: the {quantity} is {actual} {name} and {expected} {first}"
                    )


def format_pipelines(result: dict[str, Any]) -> str:
    """Formats the result for people."""
    columns = ("dispatches", "programs", "compile s", "step ms", "dispatch ms", "processor ms")
    lines = [f"{'':24}" + "".join(f"{name:>14}" for name in columns)]
    for name, case in result["cases"].items():
        seconds = (f"{case[part] * 1e3:14.1f}" for part in ("whole", "dispatch", "cpu"))
        counts = f"{case['dispatches']:14}{case['compiled_programs']:14}{case['compilation']:14.1f}"
        lines.append(f"{name:24}{counts}" + "".join(seconds))
    lines.append(
        f"{result['layers']} layers on {result['ranks']} pipeline ranks, {result['microbatches']} microbatches; "
        f"medians of {result['steps']} steps each, in turns"
    )
    return "\n".join(lines)
