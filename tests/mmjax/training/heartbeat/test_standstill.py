import hypothesis
import pytest
from hypothesis import strategies

from mmjax.training.heartbeat.process_status import Phase, ProcessStatus
from mmjax.training.heartbeat.standstill import Standstill

BEAT = 5


def statuses(*idle: float, phase: Phase = "training") -> dict[int, ProcessStatus]:
    return {
        rank: ProcessStatus(host=f"node{rank}", phase=phase, step=7, beat=1, op="global_norm", idle=float(seconds))
        for rank, seconds in enumerate(idle)
    }


def test_a_pause_of_training_is_dumped_once_and_then_ends_the_run():
    standstill = Standstill(bound=1000.0, least=60.0)
    answers = {seconds: standstill.judge(statuses(seconds, seconds + 1)) for seconds in range(0, 1006, BEAT)}
    assert {seconds: answer for seconds, answer in answers.items() if answer} == {65: "dump", 1005: "end"}
    assert standstill.verdict(statuses(1005.0, 1006.0)).reason == (
        "no process has made progress for 1005 s: "
        "process 0 (on node0, training after step 7, waiting for global_norm), "
        "process 1 (on node1, training after step 7, waiting for global_norm)"
    )


def test_the_run_goes_on_while_one_process_makes_progress():
    standstill = Standstill(bound=1000.0, least=60.0)
    assert {standstill.judge(statuses(float(seconds), 1.0)) for seconds in range(0, 5000, BEAT)} == {""}


@pytest.mark.parametrize("phase", ["starting", "compiling", "saving", "evaluating"])
def test_phases_other_than_training_may_pause_for_half_of_the_bound(phase):
    standstill = Standstill(bound=1000.0, least=60.0)
    answers = [seconds for seconds in range(0, 1000, BEAT) if standstill.judge(statuses(seconds, phase=phase))]
    assert answers == [505]


def test_a_program_that_does_not_use_its_trainer_may_pause_for_ever():
    standstill = Standstill(bound=1000.0, least=60.0)
    assert not any(standstill.judge(statuses(float(seconds), phase="idle")) for seconds in range(0, 5000, BEAT))
    assert not standstill.judge(statuses(5000.0, phase="ended"))


@hypothesis.given(strategies.integers(1, 45))
def test_a_pause_is_unusual_if_it_is_ten_times_as_long_as_those_before(usual):
    standstill = Standstill(bound=1000.0, least=0.0)
    for _ in range(3):
        for seconds in range(usual + 1):
            standstill.judge(statuses(float(seconds)))
        standstill.judge(statuses(0.0))
    dumped = [seconds for seconds in range(1, 1000) if standstill.judge(statuses(float(seconds)))]
    assert dumped == [10 * usual + 1]
