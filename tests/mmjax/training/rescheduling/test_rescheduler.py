"""Runs whose order of ops is swapped: the same bits as without, nothing where nothing is gained, and errors."""

import dataclasses
import threading

import jax
import numpy as np
import pytest

from configs.common.errors import UserError
from mmjax.training.engine.step_recorder import StepRecorder
from mmjax.training.metrics.metrics_file import read_metrics
from mmjax.training.rescheduling.rescheduler import Rescheduler, ReschedulingError
from mmjax.training.rescheduling.settings import Rescheduling
from mmjax.training.run_files import PLAN_FILE
from mmjax.training.trainer import Trainer
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.schedules.interleaved_1f1b import interleaved, interleaved_in_flight
from sharding.schedules.named import registry
from sharding.schedules.named.build import build_schedule
from sharding.schedules.one_f_one_b import one_f_one_b
from sharding.schedules.ops import Schedule, StageSeconds
from tests.mmjax.training.measured_steps import check_measured
from tests.mmjax.training.trainer_runs import CONFIG, PLAN, Recorder
from tests.sharding.schedules.one_by_one import one_by_one

pytestmark = pytest.mark.runs

SECONDS = {"vision": (100.0, 0.1), "backbone": (0.1, 10.0), "generator": (0.1, 0.1)}
"""Forwards and backwards, made up."""

WRONG = Plan(
    tuple(
        unit.with_hints(
            forward_seconds=(SECONDS[unit.name][0],) * unit.stage_count,
            backward_seconds=(SECONDS[unit.name][1],) * unit.stage_count,
        )
        for unit in PLAN.units
    ),
    microbatches=4,
    schedule="interleaved",
)
OFTEN = dataclasses.replace(CONFIG, rescheduling=Rescheduling(interval=2, tolerance=0.05))


def train(config, workdir=None, then=lambda trainer: None):
    """The result of a run of `WRONG`, its losses, copies of its final state, and its engine.

    Runs share the engine, so the order of ops is that of the plan at first.
    """
    recorder = Recorder()
    with Trainer(config, WRONG, workdir) as trainer:
        graph = trainer.engine.schedule.op_graph
        trainer.engine.set_schedule(
            build_schedule(ResolvedPlan(WRONG, trainer.engine.graph), graph.trained_stages, graph.tied_stages)
        )
        result = trainer.fit(recorder)
        state = jax.tree.map(np.array, (trainer.state.master_weights, trainer.state.optimizer_state))
        then(trainer)
        return result, recorder.losses, state, trainer.engine


def seems_slow(op_graph) -> bool:
    """Whether ops have the seconds of the plan."""
    return op_graph.seconds["vision", 0] == StageSeconds(*SECONDS["vision"])


def rescheduling_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("rescheduling")]


@pytest.fixture(scope="module")
def without():
    """A run that keeps the order of its plan."""
    return train(CONFIG)


@pytest.fixture
def replace_order(monkeypatch):
    """Lets the plan's schedule order ops otherwise for a test."""

    def replace(order):
        policy = registry.SchedulePolicy(order, interleaved_in_flight)
        monkeypatch.setattr(registry, "_schedules", {WRONG.schedule: policy})

    return replace


def test_a_swapped_order_gives_the_same_bits(without, replace_order, tmp_path, caplog):
    def order(op_graph, limits) -> Schedule:
        return one_by_one(op_graph) if seems_slow(op_graph) else interleaved(op_graph, limits)

    replace_order(order)
    recorded, (_, losses_without, state_without, _) = [], without
    result, losses, state, engine = train(OFTEN, tmp_path, lambda trainer: recorded.append(trainer.timeline()))
    swap = result.order_swaps[0]
    assert swap.measured_step in (2, 4) and swap.step == swap.measured_step + 1  # by how long the search takes
    assert swap.same_sums and swap.after < 0.99 * swap.before
    assert losses == losses_without
    jax.tree.map(np.testing.assert_array_equal, state, state_without)
    # The new order is what devices run, and what later recordings read.
    planned = build_schedule(ResolvedPlan(WRONG, engine.graph), engine.schedule.op_graph.trained_stages)
    assert engine.executor.training_schedule.ops == engine.schedule.ops != planned.ops
    assert sorted(engine.schedule.ops) == sorted(planned.ops)
    check_measured(recorded[0], engine.schedule)
    assert Plan.load(tmp_path / PLAN_FILE) == WRONG
    swaps = [line for line in read_metrics(tmp_path) if "order_swap/after" in line]
    assert swaps[0] == {"step": swap.step, "order_swap/before": swap.before, "order_swap/after": swap.after}
    assert len(swaps) == len(result.order_swaps)
    said = [record.message for record in caplog.records if "another order" in record.message]
    assert len(said) == len(swaps)
    told = f"after step {swap.step} ops run in another order: by what they took in step {swap.measured_step},"
    assert said[0].startswith(told)
    assert said[0].endswith("all results keep their bits")
    assert not rescheduling_threads()


@pytest.mark.parametrize(("settings", "recorded"), [(None, 0), (Rescheduling(interval=2, tolerance=1e9), 3)])
def test_where_nothing_differs_nothing_is_swapped(settings, recorded, without, monkeypatch):
    _, losses_without, state_without, _ = without
    timelines, timeline = [], StepRecorder.timeline
    monkeypatch.setattr(StepRecorder, "timeline", lambda recorder: timelines.append(1) or timeline(recorder))
    result, losses, state, _ = train(dataclasses.replace(CONFIG, rescheduling=settings))
    assert result.order_swaps == () and losses == losses_without and len(timelines) == recorded
    jax.tree.map(np.testing.assert_array_equal, state, state_without)


def test_a_schedule_that_finds_the_same_order_again_is_not_swapped(replace_order):
    replace_order(one_f_one_b)
    config = dataclasses.replace(CONFIG, rescheduling=Rescheduling(interval=1, tolerance=0.0))
    result, *_ = train(config)
    assert result.order_swaps == ()


def test_a_schedule_without_seconds_has_nothing_to_change(caplog):
    with Trainer(CONFIG, dataclasses.replace(WRONG, schedule="1f1b")) as trainer:
        engine = trainer.engine
    with Rescheduler(engine, OFTEN.rescheduling, 0, 1.0) as rescheduler:
        assert not any(rescheduler.records(step) or rescheduler.swap(step) for step in range(9))
    (said,) = (record.message for record in caplog.records)
    assert said == (
        "TrainConfig.rescheduling changes nothing: the order of the schedule '1f1b' does not depend on the "
        "seconds of ops; those of 'interleaved' and 'colocated' do"
    )


def test_an_error_of_the_thread_ends_the_run_and_the_thread(replace_order):
    def order(op_graph, limits) -> Schedule:
        if not seems_slow(op_graph):
            raise ZeroDivisionError("of this test")
        return one_f_one_b(op_graph, limits)

    replace_order(order)
    with pytest.raises(ReschedulingError) as refusal:
        train(OFTEN)
    assert isinstance(refusal.value.__cause__, ZeroDivisionError)
    assert str(refusal.value) == (
        "process 0 could not compute the order of ops from step 2: ZeroDivisionError: of this test; set "
        "TrainConfig.rescheduling to None to keep the order of the plan"
    )
    assert not rescheduling_threads()


def test_a_run_that_ends_before_a_swap_leaves_no_thread():
    result, *_ = train(dataclasses.replace(CONFIG, rescheduling=Rescheduling(interval=6)))
    assert result.step == 6 and result.order_swaps == () and not rescheduling_threads()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"interval": 0}, "Rescheduling.interval is 0; it must be at least 1 step"),
        ({"tolerance": -0.1}, "Rescheduling.tolerance is -0.1; it must be a share of a step"),
        ({"tolerance": float("nan")}, "Rescheduling.tolerance is nan; it must be a share of a step"),
    ],
)
def test_settings_out_of_range_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        Rescheduling(**fields)
