"""What a step does not compute again: specs and meshes are made with the engine, or in the first step."""

import collections
import dataclasses
import sys
from types import FrameType
from typing import Any

import jax
import numpy as np

from configs.optimizer import OptimizerConfig
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from sharding.plans.plan import Plan
from tests.tiny_model import tiny_batch, tiny_model
from tests.unit_plans import module_unit

MODEL = dataclasses.replace(tiny_model(), generators=())
PLAN = Plan(
    (
        module_unit("vision", (0, 1), layers=(2,), dp=2),
        module_unit("backbone", (2, 3, 4, 5), layers=(2, 1), tp=2),
    ),
    2,
    "1f1b",
)
FILES = (
    "master_weights.py",
    "mesh_programs.py",
    "replica_meshes.py",
    "meshes.py",
    "transfer_plan.py",
    "bundled_ops.py",
)
"""Of `sharding/runtime`, where what does not change from step to step is made."""


def calls_of_step(engine: Engine) -> tuple[collections.Counter[str], float]:
    """How often a second step calls each function of `FILES`, and the norm of its gradients."""
    batch = tiny_batch(MODEL, rows=4)
    state, _ = engine.executor.step(engine.initial_state(), engine.place_batch(batch, 0))
    placed, calls = jax.block_until_ready(engine.place_batch(batch, 1)), collections.Counter[str]()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        folder, _, name = frame.f_code.co_filename.rpartition("/")
        is_named = not frame.f_code.co_name.startswith("<")  # since Python 3.12 a comprehension is no call
        if event == "call" and "sharding/runtime" in folder and name in FILES and is_named:
            calls[f"{name} {frame.f_code.co_name}"] += 1

    sys.setprofile(note)
    try:
        _, summary = engine.executor.step(state, placed)
    finally:
        sys.setprofile(None)
    return calls, float(summary.gradient_norm)


def test_a_step_makes_no_specs_or_meshes():
    engine = Engine(MODEL, PLAN, tiny_batch(MODEL, rows=4), EngineSettings(OptimizerConfig(), steps=10))
    calls, norm = calls_of_step(engine)
    # Three stages: each splits its weights over the one copy, and joins its losses and its gradients.
    assert calls == {"replica_meshes.py split": 3, "replica_meshes.py join": 6}
    assert np.isfinite(norm) and norm > 0
