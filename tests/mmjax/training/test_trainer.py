"""The loop: resuming, being told to stop, stopping at NaN, and what it refuses."""

import contextlib
import dataclasses
import functools
import os
import shutil
import signal

import jax
import numpy as np
import pytest

import mmjax
from configs.common.errors import UserError
from data.packing.pipeline import evaluation_batches, training_batches
from mmjax.reporting.run_folder import open_run
from mmjax.training.batches import row_order_request
from mmjax.training.config import find_plan_file, load_configured_plan
from mmjax.training.evaluation import EvaluationStoppedError
from mmjax.training.metrics.metrics_file import read_metrics
from mmjax.training.metrics.step_timeline_file import read_step_timeline
from mmjax.training.steps import NonFiniteStepError
from mmjax.training.trainer import Trainer
from mmjax.training.workdir_lock import LOCK_FILE, WorkdirInUseError
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.unit_plan import UnitPlan
from sharding.runtime import communication_check as rehearsal
from sharding.runtime.hops import DevicePutHop
from sharding.schedules.named.build import build_schedule
from sharding.specs.modules import module_graph
from tests.mmjax.training.engine.test_compilation import compilations
from tests.mmjax.training.engines import reference
from tests.mmjax.training.measured_steps import check_measured
from tests.mmjax.training.trainer_runs import (
    CONFIG,
    DATA,
    MODEL,
    PLAN,
    Recorder,
    run,
    written,
)
from tests.sharding.html.documents import parsed_page, words
from tests.small_vqa import SmallVQA

pytestmark = pytest.mark.runs

OTHER_PLAN = Plan(
    (
        UnitPlan("trunk", ("vision", "backbone"), (4, 5), layers=(3,), parallelism=Parallelism(dp=2)),
        UnitPlan("generator", ("generator",), (6,)),
    ),
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("uninterrupted")
    result, losses = run(workdir)
    return workdir, result, losses


def test_a_run_reports_every_step_and_scores_every_question(uninterrupted):
    workdir, result, losses = uninterrupted
    assert list(losses) == [1, 2, 3, 4, 5, 6]
    assert result.step == 6 and not result.stopped_by
    assert result.losses.keys() == {"backbone", "generator"}
    questions = sum(len(SmallVQA("test")._whole.pairs[i]) for i in SmallVQA("test")._whole.image_ids[:40])
    assert result.score.questions == questions
    lines = read_metrics(str(workdir))
    assert lines[-1]["accuracy"] == pytest.approx(result.score.accuracy)
    real, capacity = result.counts["backbone"]
    assert capacity == 6 * DATA.rows * DATA.tokens and 0 < real < capacity


def test_every_logged_step_is_written_once_and_its_losses_are_means_over_the_window(uninterrupted, tmp_path):
    _, _, losses = uninterrupted
    config = dataclasses.replace(CONFIG, log_interval=2, checkpoint_interval=5)
    run(tmp_path, config=config)
    lines = [line for line in read_metrics(str(tmp_path)) if "accuracy" not in line]
    assert [line["step"] for line in lines] == [2, 4, 6]
    batches = training_batches(DATA, MODEL, SmallVQA("train"))
    for line in lines:
        window = [(losses[line["step"] - 1], next(batches)), (losses[line["step"]], next(batches))]
        for name, items in (
            ("backbone", [batch.targets for _, batch in window]),
            ("generator", [batch.real_and_capacity["generator"][0] for _, batch in window]),
        ):
            mean = sum(values[name] * count for (values, _), count in zip(window, items, strict=True)) / sum(items)
            assert line[f"loss/{name}"] == pytest.approx(mean, rel=1e-12)
    batches.close()


def test_a_run_that_was_killed_after_its_evaluation_does_not_write_it_twice(uninterrupted):
    workdir, result, _ = uninterrupted
    before = written(workdir)
    again, reported = run(workdir, resume=True)
    assert again.score == result.score and not reported
    assert written(workdir) == before


def test_single_steps_and_gradients_leave_the_sequence_of_batches_as_it_is(uninterrupted, tmp_path, capsys):
    _, _, losses = uninterrupted
    PLAN.save(tmp_path / "plan.json")
    with Trainer(CONFIG, tmp_path / "plan.json") as trainer:
        assert trainer.engine.plan == PLAN
        gradients, next_losses = trainer.gradients()
        assert next_losses == losses[1] and trainer.steps_done == 0
        first = trainer.step()
        assert (first.step, first.losses) == (1, losses[1])
        norm = np.sqrt(sum(np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in jax.tree.leaves(gradients)))
        assert first.gradient_norm == pytest.approx(norm, rel=1e-5)
        shapes = [jax.tree.map(np.shape, tree) for tree in (gradients, trainer.parameters())]
        assert shapes[0] == shapes[1] and set(gradients) == {"vision", "backbone", "generator"}
        trainer.gradients()
        assert trainer.fit().losses == losses[6]
        assert "step 6/6" in capsys.readouterr().out
        with pytest.raises(UserError, match="no workdir"):
            trainer.save()


def test_a_run_keeps_the_timeline_of_its_fifth_step(uninterrupted):
    workdir, *_ = uninterrupted
    measured = read_step_timeline(workdir)
    assert measured.step == 5 and not list(workdir.glob("*.tmp"))
    check_measured(
        measured.timeline,
        build_schedule(ResolvedPlan(PLAN, module_graph(MODEL)), measured.timeline.op_graph.trained_stages),
    )
    assert len(measured.timeline.lanes) == 4 and measured.timeline.costs is None


def test_a_recorded_step_has_the_same_bits(uninterrupted):
    _, _, losses = uninterrupted
    with Trainer(CONFIG, PLAN) as plain, Trainer(CONFIG, PLAN) as recorded:
        assert plain.step().losses == losses[1]
        timeline = recorded.timeline()
        check_measured(timeline, plain.engine.executor.training_schedule)
        assert (recorded.steps_done, plain.steps_done) == (1, 1)
        jax.tree.map(np.testing.assert_array_equal, recorded.parameters(), plain.parameters())
        jax.tree.map(np.testing.assert_array_equal, recorded.state.optimizer_state, plain.state.optimizer_state)
        assert recorded.step().losses == losses[2]


def test_fit_of_the_python_interface_leaves_what_the_command_leaves(uninterrupted, tmp_path):
    _, _, losses = uninterrupted
    evaluated = []
    config = dataclasses.replace(CONFIG, sample_questions=1, sample_images=0)
    with mmjax.Trainer(config, PLAN, tmp_path) as trainer:
        result = trainer.fit(Recorder(), on_evaluation=lambda trainer: evaluated.append(trainer.steps_done))
    assert result.losses == losses[6] and evaluated == [6]
    run = open_run(tmp_path)
    assert (run.summary["steps"], run.starts[0]["step"], run.starts[0]["steps"]) == (6, 0, 6)
    assert run.summary["resumed_from"] is None and run.summary["passed_over"] == []
    assert run.summary["best_checkpoint"] == {"step": 6, "accuracy": run.summary["accuracy"]}
    assert [(answer["step"], answer["kind"]) for answer in run.answers] == [(6, "answer")]
    told = words(parsed_page((tmp_path / "report.html").read_text()))
    assert "Finished after 6 steps." in told
    assert "Simulated with the analytic costs of the cluster cpu" in told and "Measured, step 5" in told


def test_summary_and_page_say_what_a_run_resumed_from_and_why_not_from_a_newer_checkpoint(uninterrupted, tmp_path):
    workdir, *_ = uninterrupted
    copy = shutil.copytree(workdir, tmp_path / "copy")
    (copy / "checkpoints" / "6" / "host.json").write_text("{")
    config = dataclasses.replace(CONFIG, sample_questions=0, sample_images=0)
    with mmjax.Trainer(config, PLAN, copy, resume=True) as trainer:
        trainer.fit(Recorder())
    run = open_run(copy)
    (reason,) = run.summary["passed_over"]
    assert run.summary["resumed_from"] == 3 and run.starts[-1]["passed_over"] == [reason]
    assert "6 passed over: damaged, host.json has 1 of" in reason
    assert f"resumed from step 3: {reason}" in words(parsed_page((copy / "report.html").read_text()))


def test_fewer_steps_than_are_done_are_refused(uninterrupted):
    workdir, *_ = uninterrupted
    with pytest.raises(UserError, match="TrainConfig.steps is 5, and 6 steps are done in .*raise steps above 6"):
        Trainer(dataclasses.replace(CONFIG, steps=5), PLAN, workdir, resume=True)
    assert not (workdir / LOCK_FILE).exists()


def test_resuming_on_another_plan_gives_the_same_losses(uninterrupted, tmp_path):
    _, _, losses = uninterrupted
    run(tmp_path, recorder=Recorder(1, functools.partial(os.kill, os.getpid(), signal.SIGTERM)))
    _, after = run(tmp_path, plan=OTHER_PLAN, resume=True)
    assert max(after) == 6
    for step, step_losses in after.items():
        for module, loss in step_losses.items():
            assert loss == pytest.approx(losses[step][module], rel=2e-5)


def test_nan_stops_with_step_and_samples_and_saves_the_state_before(tmp_path):
    poisoned = dataclasses.replace(CONFIG, dataset=functools.partial(SmallVQA, poisoned=7), steps=40, log_interval=100)
    with pytest.raises(NonFiniteStepError, match=r"step (\d+): .*Its samples: \[.*\b7\b.*\]") as caught:
        run(tmp_path, config=poisoned)
    step = int(str(caught.value).split("step ")[1].split(":")[0])
    trainer = Trainer(dataclasses.replace(poisoned), PLAN, tmp_path, resume=True)
    assert trainer.steps_done == step - 1 and trainer.window.steps == step - 1
    with pytest.raises(WorkdirInUseError, match="in use by this process: close its other Trainer"):
        Trainer(poisoned, PLAN, tmp_path, resume=True)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trainer.state.master_weights))
    again = next(trainer.batches)
    assert 7 in again.sample_ids
    trainer.close()


def test_a_workdir_with_checkpoints_is_refused_without_resume(uninterrupted):
    workdir, *_ = uninterrupted
    with pytest.raises(UserError, match="--resume"):
        Trainer(CONFIG, PLAN, workdir, resume=False)


def test_accuracies_are_written_at_the_evaluation_interval(tmp_path):
    config = dataclasses.replace(CONFIG, evaluation_interval=1)
    run(tmp_path, config=config)
    for name in ("accuracy", "held_out_loss/backbone"):
        assert [line["step"] for line in read_metrics(str(tmp_path)) if name in line] == [1, 2, 3, 4, 5, 6]


def test_the_held_out_loss_is_the_mean_over_the_target_tokens_of_the_test_split(tmp_path):
    with Trainer(CONFIG, PLAN) as trainer:
        score = trainer.evaluate()
        parameters = jax.device_get(trainer.parameters())
    losses = reference(MODEL)
    batches = evaluation_batches(DATA, MODEL, CONFIG.dataset("test"))
    with contextlib.closing(batches):
        losses_and_targets = [
            (float(losses(parameters, batch.arrays)[0]["backbone"]), batch.targets) for batch in batches
        ]
    targets = sum(count for _, count in losses_and_targets)
    assert len(losses_and_targets) > 1 and score.targets == targets
    assert score.loss == pytest.approx(sum(loss * count for loss, count in losses_and_targets) / targets, rel=1e-4)
    assert score.scalars("backbone") == {"accuracy": score.accuracy, "held_out_loss/backbone": score.loss}


def test_an_evaluation_that_was_stopped_before_it_compiles_nothing():
    with Trainer(CONFIG, PLAN) as trainer:
        _ = trainer.state
        with compilations() as compiled, pytest.raises(EvaluationStoppedError):
            trainer.evaluate(stop_requested=lambda: True)
    assert not compiled


@pytest.mark.parametrize("reordering", ["inter_microbatch", "both", "search"])
def test_the_order_of_microbatches_that_run_in_lockstep_is_refused_before_anything_is_compiled(reordering):
    units = (*PLAN.units[:1], dataclasses.replace(PLAN.unit_of("backbone"), executor="compiled"), *PLAN.units[2:])
    plan = dataclasses.replace(PLAN, units=units)
    with pytest.raises(
        UserError, match=f"TrainConfig.reordering is '{reordering}', but unit backbone has the executor"
    ):
        row_order_request(dataclasses.replace(CONFIG, reordering=reordering), plan, "cpu")
    allowed = row_order_request(dataclasses.replace(CONFIG, reordering="intra_microbatch"), plan, "cpu")
    assert allowed is not None and allowed.policy == "intra_microbatch"


def test_one_device_replaces_the_plan_only_where_the_configuration_allows():
    config = dataclasses.replace(CONFIG, plan="plans/quickstart.json", require_plan=False)
    plan, remark = load_configured_plan(config, 8)
    assert plan.device_count == 8 and remark == ""
    plan, remark = load_configured_plan(config, 2)
    assert plan.device_count == 1 and "needs 8 devices and there are 2" in remark
    plan, _ = load_configured_plan(dataclasses.replace(config, require_plan=True), 2)
    assert plan.device_count == 8  # the engine refuses it, with both numbers


def test_a_missing_plan_file_is_named():
    with pytest.raises(UserError, match=r"no plan file nowhere\.json"):
        find_plan_file("nowhere.json")


@pytest.mark.parametrize("field", ["steps", "checkpoint_interval", "keep_checkpoints", "log_interval"])
def test_counts_must_be_positive(field):
    with pytest.raises(UserError, match=field):
        dataclasses.replace(CONFIG, **{field: 0})


def test_a_failing_hop_is_named_before_the_first_step(tmp_path):
    trainer = Trainer(CONFIG, PLAN, tmp_path, resume=False)

    class Cut(DevicePutHop):
        """A hop whose cable is cut."""

        def __call__(self, array):
            raise RuntimeError("cable cut")

    channel = trainer.engine.executor.channels[0]
    whole, ends = channel.activation_hop, channel.activation_hop.endpoints
    object.__setattr__(channel, "activation_hop", Cut(ends.source, ends.target, ends.shape, ends.dtype))
    with pytest.raises(rehearsal.CommunicationError, match="hop vision>backbone from unit vision stage 0"):
        trainer.fit()
    object.__setattr__(channel, "activation_hop", whole)  # other tests share the engine
    trainer.close()
