"""One run a workdir: what real processes find there that start second, or after a process was killed."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from mmjax.training.workdir_lock import LOCK_FILE, LockHolder, WorkdirInUseError, locked_workdir, process_birth

HOLD = """
import pathlib, sys
from mmjax.training.workdir_lock import WorkdirInUseError, locked_workdir
try:
    with locked_workdir(pathlib.Path(sys.argv[1])):
        print("locked", flush=True)
        sys.stdin.read()
except WorkdirInUseError as error:
    sys.exit(str(error))
"""


def start(workdir):
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(workdir), "--resume"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock on `tmp_path / "run"`."""
    process = start(tmp_path / "run")
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


def write_holder(workdir, **changed):
    workdir.mkdir(exist_ok=True)
    fields = {
        "host": socket.gethostname(),
        "pid": 1,
        "birth": "",
        "started": "2030-01-01 10:00:00",
        "command": "train",
    } | changed
    (workdir / LOCK_FILE).write_text(json.dumps(fields))


@pytest.mark.processes
def test_a_second_process_is_refused_in_a_line_that_names_the_first(holder, tmp_path):
    second = start(tmp_path / "run")
    _, refusal = second.communicate(timeout=60)
    assert second.returncode == 1 and refusal.count("\n") == 1
    assert f"{tmp_path / 'run'} is in use by process {holder.pid} on {socket.gethostname()} since " in refusal
    assert f"(-c {tmp_path / 'run'} --resume); wait until it ends, or choose another workdir" in refusal
    holder.communicate("")
    assert holder.returncode == 0 and list((tmp_path / "run").iterdir()) == []
    with locked_workdir(tmp_path / "run"):
        pass


@pytest.mark.processes
def test_a_killed_run_leaves_nothing_to_delete(holder, tmp_path, caplog):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert LockHolder.read(tmp_path / "run" / LOCK_FILE).pid == holder.pid
    with locked_workdir(tmp_path / "run"):
        assert f"was left by process {holder.pid} on" in caplog.text
        assert LockHolder.read(tmp_path / "run" / LOCK_FILE).pid == os.getpid()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_lock_whose_process_id_lives_again_is_stale(tmp_path, caplog):
    write_holder(tmp_path, pid=os.getppid())
    with locked_workdir(tmp_path):
        assert f"left by process {os.getppid()}" in caplog.text


def test_a_lock_that_was_cut_off_while_it_was_written_is_stale(tmp_path):
    (tmp_path / LOCK_FILE).write_text('{"host": "nod')
    with locked_workdir(tmp_path):
        assert LockHolder.read(tmp_path / LOCK_FILE).pid == os.getpid()


def test_a_lock_of_another_host_is_refused_with_what_to_delete(tmp_path):
    write_holder(tmp_path, host="node-7")
    with (
        pytest.raises(WorkdirInUseError, match=rf"process 1 on node-7 .*has ended, delete {tmp_path / LOCK_FILE}"),
        locked_workdir(tmp_path),
    ):
        pass
    (tmp_path / LOCK_FILE).unlink()
    with locked_workdir(tmp_path):
        pass


def test_one_process_does_not_take_a_workdir_twice_and_gives_it_back_after_an_error(tmp_path):
    with pytest.raises(KeyError), locked_workdir(tmp_path):
        with pytest.raises(WorkdirInUseError, match="in use by this process: close its other Trainer"):
            locked_workdir(tmp_path).__enter__()
        assert LockHolder.read(tmp_path / LOCK_FILE).pid == os.getpid()
        raise KeyError
    with locked_workdir(tmp_path):
        pass


def test_other_processes_of_a_run_take_no_lock(tmp_path):
    with locked_workdir(tmp_path), locked_workdir(tmp_path, takes=False):
        pass
    with locked_workdir(tmp_path / "not there", takes=False):
        assert not (tmp_path / "not there").exists()


def test_a_file_removed_between_opening_and_locking_is_opened_again(tmp_path, monkeypatch):
    """The run that held the lock ends at that moment: its file, still open here, would lock out nobody."""
    lock, calls = fcntl.flock, []

    def remove_first(descriptor, operation):
        if not calls:
            (tmp_path / LOCK_FILE).unlink()
        calls.append(descriptor)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with locked_workdir(tmp_path):
        assert len(calls) == 2
        with pytest.raises(WorkdirInUseError):
            locked_workdir(tmp_path).__enter__()


@pytest.mark.processes
def test_without_locks_of_the_file_system_the_process_id_decides(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    write_holder(tmp_path, pid=os.getppid(), birth=process_birth(os.getppid()))
    with pytest.raises(WorkdirInUseError, match=f"in use by process {os.getppid()}"):
        locked_workdir(tmp_path).__enter__()
    write_holder(tmp_path, pid=os.getpid(), birth="another boot 1")  # as in a container that starts again
    with locked_workdir(tmp_path), pytest.raises(WorkdirInUseError, match="in use by this process"):
        locked_workdir(tmp_path).__enter__()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_holder(tmp_path, pid=ended.pid)
    with locked_workdir(tmp_path):
        pass
