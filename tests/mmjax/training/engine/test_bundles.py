"""A step whose ops run in bundles: its losses and gradients are those of one device."""

import copy
import dataclasses
import functools

import jax
import pytest

from mmjax.training.engine.compilation import compile_step
from mmjax.training.engine.engine import Engine
from sharding.plans.plan import Plan
from sharding.runtime.bundled_ops import check_device_order
from sharding.runtime.executor import Executor
from sharding.schedules.checks import check_schedule
from sharding.schedules.ops import GLOBAL_NORM, PipelineOp, Schedule, ScheduleError
from tests.mmjax.training.engine.test_compilation import compilations
from tests.mmjax.training.engines import (
    SETTINGS,
    STEP,
    WITHOUT_GENERATOR,
    assert_step_of_one_device,
    noisy_state,
)
from tests.tiers import first_in_default
from tests.tiny_model import tiny_batch
from tests.unit_plans import module_unit

MICROBATCHES, ROWS = 3, 12
BACKBONE = module_unit("backbone", (0, 1, 2, 3), layers=(3,), recompute=("selective",), dp=2, tp=2)
ENCODERS = {
    "tp 2": module_unit("vision", (0, 1, 2, 3), layers=(2,), dp=2, tp=2),
    "tp 2, gathered positions": module_unit(
        "vision", (0, 1, 2, 3), layers=(2,), recompute=("full",), dp=2, tp=2, collectives="sequence_parallel"
    ),
    "tp 1, offloaded": module_unit("vision", (0, 1, 2, 3), layers=(2,), recompute=("offload",), dp=4),
}


def op(kind, unit, microbatch=-1, target=""):
    return PipelineOp(kind, unit, 0, microbatch, target, 0 if target else -1)


def forward(unit, microbatch):
    return op("forward", unit, microbatch)


def backward(unit, microbatch):
    return op("backward", unit, microbatch)


def hop(microbatch):
    return op("hop", "vision", microbatch, "backbone")


def gradient_hop(microbatch):
    return op("gradient_hop", "backbone", microbatch, "vision")


PROGRAMS = (
    (op("gather", "vision"),),
    (op("gather", "backbone"), forward("vision", 0)),
    (hop(0),),
    (forward("backbone", 0), forward("vision", 1)),
    (hop(1),),
    (backward("backbone", 0), forward("vision", 2)),
    (hop(2),),
    (gradient_hop(0),),
    (backward("vision", 0), forward("backbone", 1)),
    (backward("backbone", 1),),
    (gradient_hop(1),),
    (forward("backbone", 2),),
    (backward("backbone", 2), backward("vision", 1)),
    (gradient_hop(2),),
    (op("reduce", "backbone"), backward("vision", 2)),
    (op("reduce", "vision"),),
    (GLOBAL_NORM,),
    (op("update", "backbone"),),
    (op("update", "vision"),),
)
"""One bundle of every two kinds of ops that can run in one."""

OPS = tuple(op for program in PROGRAMS for op in program)


def with_schedule(engine: Engine, schedule: Schedule) -> Engine:
    """An engine with the same programs, whose training steps follow another schedule."""
    executor = engine.executor
    changed = copy.copy(engine)
    changed.executor = Executor(
        executor.stages,
        executor.channels,
        executor.tied_parameters,
        executor.global_reduction,
        schedule,
        executor.evaluation_schedule,
        executor.hyperparameters,
    )
    return changed


@functools.cache
def bundled_engine(encoder: str) -> Engine:
    """That of a plan whose steps run in `PROGRAMS`."""
    plan = Plan((ENCODERS[encoder], BACKBONE), MICROBATCHES)
    engine = Engine(WITHOUT_GENERATOR, plan, tiny_batch(WITHOUT_GENERATOR, ROWS), SETTINGS)
    bundled = frozenset(op for program in PROGRAMS for op in program[1:])
    schedule = Schedule(engine.executor.training_schedule.op_graph, OPS, bundled)
    check_schedule(schedule, {("vision", 0): MICROBATCHES, ("backbone", 0): MICROBATCHES})
    return with_schedule(engine, schedule)


@pytest.mark.parametrize("encoder", first_in_default(ENCODERS))
def test_a_step_in_bundles_is_that_of_one_device(encoder):
    assert_step_of_one_device(bundled_engine(encoder), ROWS)


def test_every_bundle_is_compiled_ahead_and_nothing_else_later():
    engine = bundled_engine("tp 2")
    compile_step(engine, lambda done, total: None)
    state, batch = noisy_state(engine), engine.place_batch(tiny_batch(WITHOUT_GENERATOR, ROWS), STEP)
    seen = []
    with compilations() as compiled:
        for _ in range(2):
            state, _ = engine.executor.step(state, batch, lambda op, outputs: seen.append((op, outputs)))
    assert not compiled
    assert tuple(op for op, _ in seen) == OPS * 2 == engine.executor.op_log.last(2 * len(OPS))
    assert all(jax.tree.leaves(outputs) for _, outputs in seen)


def test_units_whose_devices_are_in_different_orders_are_refused():
    swapped = dataclasses.replace(ENCODERS["tp 2"], devices=(2, 3, 0, 1))
    plan = Plan((swapped, BACKBONE), MICROBATCHES)
    engine = Engine(WITHOUT_GENERATOR, plan, tiny_batch(WITHOUT_GENERATOR, ROWS), SETTINGS)
    schedule = Schedule(engine.executor.training_schedule.op_graph, OPS, frozenset({forward("vision", 1)}))
    message = (
        r"forward vision 0 of microbatch 1 is bundled with forward backbone 0 .* as \[2, 3, 0, 1\] and unit backbone"
    )
    with pytest.raises(ScheduleError, match=message):
        check_device_order(schedule, engine.executor.stages)
