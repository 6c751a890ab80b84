"""Signals, sent to real processes of which the main thread does not return to Python."""

import signal
import subprocess
import sys

import pytest

from configs.common.errors import INTERRUPTED
from mmjax.training.stop_signals import StoppedBeforeFirstStepError, StopSignals

COMPUTING = """
import hashlib
from mmjax.training.stop_signals import StopSignals
with StopSignals() as stop:
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", {rounds})  # a long call that runs no Python code, as compiling is one
    print(stop.requested(), stop.reason, flush=True)
"""


@pytest.mark.processes
def test_the_first_interrupt_is_answered_at_once_and_the_second_ends_the_process():
    command = [sys.executable, "-c", COMPUTING.format(rounds=2**31 - 1)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert [process.stderr.readline() for _ in range(2)] == [
            "\n",
            "stopping after this step; Ctrl-C again leaves at once\n",
        ]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == INTERRUPTED
        assert process.stderr.read() == "\nleft at once\n"


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_one_signal_asks_for_a_stop(number, reason):
    with StopSignals() as stop:
        assert not stop.requested()
        signal.raise_signal(number)
        assert stop.requested() and stop.reason == reason
        with pytest.raises(StoppedBeforeFirstStepError), stop.leaving_at_once():
            raise AssertionError("it was entered after the stop had been asked for")


def test_before_the_first_step_a_signal_ends_the_run():
    with StopSignals() as stop:
        with pytest.raises(StoppedBeforeFirstStepError), stop.leaving_at_once():
            signal.raise_signal(signal.SIGTERM)
        assert stop.reason == "SIGTERM"
