"""The example of a schedule: named by a plan file, simulated, and executed with the gradients of one device."""

import dataclasses

import pytest

from mmjax.training.engine.stage_layouts import trees_by_module
from mmjax.training.verification.comparison import GRADIENT_TOLERANCE
from mmjax.training.verification.error_measures import gradient_errors
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.checks import check_schedule
from sharding.schedules.named import registry
from tests.examples.loading import load_example, run_command
from tests.mmjax.training.engines import (
    STEP,
    WITHOUT_GENERATOR,
    noisy_parameters,
    noisy_state,
    reference,
    shared_engine,
)
from tests.sharding.schedules.slots import bubble_slots
from tests.sharding.stage_graphs import chain, training
from tests.tiny_model import tiny_batch

VISION = UnitPlan("vision", ("vision",), (0,), layers=(2,))
BACKBONE = UnitPlan("backbone", ("backbone",), (1, 2), layers=(1, 2), recompute=("none", "none"))
PLAN = Plan((VISION, BACKBONE), microbatches=4, schedule="eager_1f1b")


@pytest.fixture
def example(monkeypatch):
    """The example, whose registration is undone."""
    monkeypatch.setattr(registry, "_schedules", dict(registry.BUILT_IN_SCHEDULES))
    return load_example("custom_schedule")


def test_the_order_is_valid_and_warms_up_with_more_microbatches_than_1f1b(example):
    limits = example.max_in_flight(op_graph := training(chain(3), 8))
    check_schedule(schedule := example.eager_1f1b(op_graph, limits), limits)
    assert [*limits.values()] == [5, 3, 1]
    assert max(bubble_slots(schedule).values()) == 2 * (3 - 1)


@pytest.mark.processes
def test_the_command_simulates_a_plan_file_that_names_it(tmp_path):
    generator = UnitPlan("generator", ("generator",), (3,), layers=(3,))
    backbone = dataclasses.replace(BACKBONE, layers=(2, 1))
    plan = Plan((VISION, backbone, generator), microbatches=4, schedule="eager_1f1b")
    plan.save(tmp_path / "plan.json")
    printed = run_command("mmjax.simulate", "--gin_file=custom_schedule.gin", f"--plan={tmp_path / 'plan.json'}")
    assert printed["plan"]["schedule"] == "eager_1f1b" and printed["step_seconds"] > 0


def test_the_executor_runs_it_with_the_gradients_of_one_device(example):
    batch = tiny_batch(WITHOUT_GENERATOR)
    losses, gradients = reference(WITHOUT_GENERATOR)(noisy_parameters(WITHOUT_GENERATOR), batch)
    engine = shared_engine(PLAN, WITHOUT_GENERATOR)
    kinds = [op.kind for op in engine.executor.training_schedule.ops if op.stage_id == ("vision", 0)]
    assert kinds.index("backward") > [number for number, kind in enumerate(kinds) if kind == "forward"][3]
    actual_gradients, summary = engine.executor.gradients(noisy_state(engine), engine.place_batch(batch, STEP))
    assert engine.losses_by_name(summary) == pytest.approx({name: float(loss) for name, loss in losses.items()}, 1e-5)
    errors = gradient_errors(trees_by_module(actual_gradients), gradients)
    assert max(error for module_errors in errors.values() for error in module_errors.values()) < GRADIENT_TOLERANCE
