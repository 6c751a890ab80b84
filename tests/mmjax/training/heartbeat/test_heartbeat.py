"""The heartbeat of a run of one process; `tests/mmjax/commands/test_launch.py` has those of several."""

import threading

import pytest

from mmjax.training.heartbeat.heartbeat import Heartbeat


def test_one_process_has_no_thread_and_keeps_its_errors():
    before = threading.enumerate()
    with pytest.raises(KeyError), Heartbeat(60.0, 3600.0) as heartbeat, heartbeat.reporting_errors():
        with heartbeat.phase("training"), heartbeat.phase("saving"):
            heartbeat.step_finished(1, "loss 4.0")
            heartbeat.window_finished(1, 1.0, 0.5, 0.1)
        assert threading.enumerate() == before
        raise KeyError("of this process")
    assert heartbeat.name(0) == "process 0"
