"""Supervising real processes, which are shell scripts here: they know their rank by JAX_PROCESS_ID."""

import os
import select
import signal
import socket
import sys
import threading

import pytest

from mmjax.launching import local_processes, stopped_processes
from mmjax.launching.local_processes import LaunchSettings
from mmjax.launching.restart_limit import RestartLimit
from mmjax.launching.slots import Slots
from mmjax.launching.supervisor import supervise

HOST = socket.gethostname()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(local_processes, "TERMINATION_SECONDS", 0.1)


def run(folder, script: str, processes: int = 3, restarts: int = 0, again: str = "exit 0", minimum: int = 0) -> int:
    settings = LaunchSettings(devices=None, logs=folder)
    slots = Slots(tuple(range(processes)), minimum or processes)
    shell = ["sh", "-c"]
    return supervise([*shell, script], lambda: [*shell, again], slots, settings, RestartLimit(restarts, 60.0))


def test_all_processes_run_to_their_end_with_logs_of_all_but_the_first(tmp_path, capfd):
    assert run(tmp_path, "echo I am $JAX_PROCESS_ID of $JAX_NUM_PROCESSES") == 0
    assert capfd.readouterr() == ("I am 0 of 3\n", "")
    logs = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert logs == {"process-1.log": "I am 1 of 3\n", "process-2.log": "I am 2 of 3\n"}


def has_ended(pid: int) -> bool:
    """Whether a process that was killed has ended; it may be a zombie that nobody waits for."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with open(descriptor, "rb"):
        return bool(select.select([descriptor], [], [], 10)[0])


FAILING = """
trap '' TERM
[ $JAX_PROCESS_ID = 1 ] || { sleep 1000; exit; }
for line in $(seq 20); do echo line $line; done
"""


@pytest.mark.parametrize(
    ("ending", "code", "described"),
    [("exit 7", 7, "exited with code 7"), ("kill -KILL $$", 137, "was ended by SIGKILL")],
)
def test_a_process_that_fails_is_named_and_ends_the_others(tmp_path, capfd, ending, code, described):
    assert run(tmp_path, FAILING + ending) == code
    said = capfd.readouterr().err.splitlines()
    assert said[0] == (
        f"mmjax launch: process 1 on {HOST} {described}; all others were ended; "
        f"the last lines of {tmp_path}/process-1.log:"
    )
    assert said[1:] == [f"    line {number}" for number in range(11, 21)]


def test_a_stopped_process_is_ended_with_all_that_it_started(tmp_path):
    script = (
        f"if [ $JAX_PROCESS_ID = 1 ]; then sleep 1000 & echo $! > {tmp_path}/started; mv {tmp_path}/started "
        f"{tmp_path}/pids; kill -STOP $$; fi; while [ ! -e {tmp_path}/pids ]; do sleep 0.01; done; exit 1"
    )
    assert run(tmp_path, script, processes=2) == 1
    assert has_ended(int((tmp_path / "pids").read_text()))


def test_a_process_that_stays_stopped_is_killed_and_ends_the_others(tmp_path, capfd, monkeypatch):
    """Also before the processes know each other; one that goes on in time is left alone."""
    monkeypatch.setattr(stopped_processes, "STOPPED_SECONDS", 1.0)
    monkeypatch.setattr(stopped_processes, "_INTERVAL", 0.05)
    script = f"""
    if [ $JAX_PROCESS_ID = 1 ]; then (while ! kill -CONT $$; do :; done; touch {tmp_path}/went-on) & kill -STOP $$; fi
    while [ ! -e {tmp_path}/went-on ]; do sleep 0.01; done
    [ $JAX_PROCESS_ID = 2 ] && kill -STOP $$
    exec sleep 1000
    """
    assert run(tmp_path, script) == 137
    said = capfd.readouterr().err
    assert f"process 2 on {HOST} was stopped (SIGSTOP) for 1 s and then killed; all others were ended" in said


def test_a_failed_run_starts_again_as_often_as_allowed(tmp_path, capfd):
    assert run(tmp_path, "exit 3", 1, restarts=2, again="exit 4") == 4
    assert [line.removeprefix("mmjax launch: ") for line in capfd.readouterr().err.splitlines()] == [
        f"process 0 on {HOST} exited with code 3",
        "restart 1 of at most 2 within 60 s: sh -c 'exit 4'",
        f"process 0 on {HOST} exited with code 4",
        "restart 2 of at most 2 within 60 s: sh -c 'exit 4'",
        f"process 0 on {HOST} exited with code 4",
        "not started again: 2 restarts within 60 s are the most allowed",
    ]
    assert run(tmp_path, "exit 3", 1, restarts=1) == 0


def test_a_mistaken_command_line_is_not_tried_again(tmp_path):
    assert run(tmp_path, "exit 2", 1, restarts=1) == 2


def test_signals_are_passed_on_and_end_restarts(tmp_path, capfd):
    script = f"trap 'echo got TERM; exit 9' TERM; touch {tmp_path}/ready-$JAX_PROCESS_ID; while :; do sleep 0.01; done"

    def interrupt() -> None:
        while len(list(tmp_path.glob("ready-*"))) < 2:
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    assert run(tmp_path, script, processes=2, restarts=1) == 9
    shown = capfd.readouterr()
    assert shown.out == "got TERM\n" and "restart" not in shown.err
    assert (tmp_path / "process-1.log").read_text() == "got TERM\n"


@pytest.mark.processes
def test_a_program_that_is_not_there_leaves_nothing_behind(tmp_path):
    settings = LaunchSettings(devices=None, logs=tmp_path)
    with pytest.raises(FileNotFoundError):
        supervise([f"{sys.executable}-no"], list, Slots((0, 1), 2), settings, RestartLimit(0, 1.0))


def test_a_process_whose_device_check_failed_is_left_out_although_another_one_ended_first(tmp_path, capfd):
    script = """
    if [ $JAX_PROCESS_ID = 1 ]; then trap '' TERM; touch $0/found; sleep 0.05; exit 69; fi
    while [ ! -e $0/found ]; do sleep 0.01; done
    exit 75
    """
    again = f"echo $JAX_NUM_PROCESSES > {tmp_path}/again-$JAX_PROCESS_ID"
    settings = LaunchSettings(devices=None, logs=tmp_path)
    command = ["sh", "-c", script, str(tmp_path)]
    slots = Slots((0, 1, 2), 2)
    assert supervise(command, lambda: ["sh", "-c", again], slots, settings, RestartLimit(1, 60.0)) == 0
    said = capfd.readouterr().err
    assert f"process 1 on {HOST} exited with code 69; all others were ended" in said
    assert "mmjax launch: process 1 is left out; 2 processes go on\n" in said
    assert {path.name: path.read_text() for path in tmp_path.glob("again-*")} == {"again-0": "2\n", "again-1": "2\n"}


def test_without_a_minimum_a_failed_device_check_ends_the_run(tmp_path, capfd):
    assert run(tmp_path, "[ $JAX_PROCESS_ID = 0 ] && exit 69; sleep 1000", restarts=3) == 69
    assert "not started again: at least 3 processes must be left" in capfd.readouterr().err
