"""Runs that are killed or told to stop, and resumed: they end as uninterrupted ones."""

import contextlib
import dataclasses
import functools
import os
import signal

import pytest

from mmjax.training.config import TrainConfig
from mmjax.training.metrics.activity import EVALUATING
from mmjax.training.metrics.metrics_file import read_metrics
from mmjax.training.metrics.writers import open_metrics_writer
from mmjax.training.trainer import Trainer
from tests.mmjax.training.trainer_runs import CONFIG, PLAN, Recorder, run, written
from tests.small_vqa import SmallVQA

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return run(tmp_path_factory.mktemp("uninterrupted"))


@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_a_signal_saves_and_resuming_gives_the_same_losses(uninterrupted, tmp_path, number, name):
    whole, losses = uninterrupted
    stop = Recorder(1, functools.partial(os.kill, os.getpid(), number))
    first, before = run(tmp_path, recorder=stop)
    assert first.stopped_by == name and 2 <= first.step < 6 and first.score is None
    second, after = run(tmp_path, resume=True)
    assert second.step == 6 and not second.stopped_by
    for step, step_losses in (before | after).items():
        assert step_losses == losses[step], step
    assert second.score == whole.score
    assert [line["step"] for line in read_metrics(str(tmp_path)) if "accuracy" not in line] == [1, 2, 3, 4, 5, 6]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


class Killed(BaseException):
    """Ends a run where kill -9 would: nothing is saved, reported or closed after it."""


class KilledTrainer(Trainer):
    """A trainer that does something when it is about to dispatch the step after `at`."""

    at, then = 0, staticmethod(lambda: None)

    def dispatch_step(self, *arguments):
        if self.steps_done == self.at:
            self.then()
        return super().dispatch_step(*arguments)


def kill() -> None:
    raise Killed


def interrupted_config(**intervals: int) -> TrainConfig:
    small = functools.partial(SmallVQA, images=8)  # evaluations are short
    return dataclasses.replace(CONFIG, dataset=small, evaluation_interval=3, **intervals)


@pytest.fixture(scope="module")
def whole_lines(tmp_path_factory):
    """By log interval, what an uninterrupted run writes; which checkpoints it has makes no difference."""
    folders = {interval: tmp_path_factory.mktemp(f"every_{interval}") for interval in (2, 4)}
    for interval, folder in folders.items():
        run(folder, config=interrupted_config(log_interval=interval, checkpoint_interval=6))
    return {interval: written(folder) for interval, folder in folders.items()}


@pytest.mark.parametrize(
    ("log_interval", "checkpoint_interval", "at", "then"),
    [
        pytest.param(2, 3, 5, kill, id="a line after the checkpoint has a step before it"),
        pytest.param(4, 3, 5, kill, id="a line after the checkpoint has all steps before it"),
        pytest.param(2, 2, 3, kill, id="checkpoints after lines"),
        pytest.param(4, 6, 2, functools.partial(os.kill, os.getpid(), signal.SIGTERM), id="stopped by a signal"),
    ],
)
def test_a_killed_and_resumed_run_writes_the_metrics_of_an_uninterrupted_one(
    tmp_path, whole_lines, log_interval, checkpoint_interval, at, then
):
    config = interrupted_config(log_interval=log_interval, checkpoint_interval=checkpoint_interval)
    trainer = KilledTrainer(config, PLAN, tmp_path)
    trainer.at, trainer.then = at, then
    metrics = open_metrics_writer(tmp_path)
    with contextlib.closing(metrics):  # only after the resumed run
        with contextlib.suppress(Killed):
            trainer.fit(Recorder(), metrics)
        assert trainer.steps_done < 6
        trainer.close()  # a process that is killed gives the lock and its threads back too
        run(tmp_path, resume=True, config=config)
        lines = written(tmp_path)
    assert lines == whole_lines[log_interval]
    assert [line["step"] for line in lines] == sorted([*range(log_interval, 7, log_interval), 6][:3] + [3, 6])


class StopsWhileEvaluating(Recorder):
    """Sends SIGTERM at the beginning of the evaluation of this number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def show(self, activity, done, total, remark="") -> None:
        if activity is EVALUATING and done == 0:
            self._number -= 1
            if not self._number:
                signal.raise_signal(signal.SIGTERM)


def test_an_evaluation_that_is_stopped_is_made_up_for_when_the_run_is_resumed(tmp_path, whole_lines):
    config = interrupted_config(log_interval=2, checkpoint_interval=6)
    first, _ = run(tmp_path, recorder=StopsWhileEvaluating(1), config=config)
    assert (first.step, first.score, first.stopped_by) == (3, None, "SIGTERM")
    # Makes up for the evaluation after step 3, and is stopped in the last one.
    second, _ = run(tmp_path, resume=True, recorder=StopsWhileEvaluating(2), config=config)
    assert (second.step, second.stopped_by) == (6, "SIGTERM")
    third, _ = run(tmp_path, resume=True, config=config)
    assert third.step == 6 and third.score is not None and not third.stopped_by
    assert written(tmp_path) == whole_lines[2]
