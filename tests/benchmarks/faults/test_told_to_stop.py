"""SIGTERM, as `timeout` sends it, ends the benchmark and the run that it has launched."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes


def processes_of(folder: pathlib.Path) -> dict[int, str]:
    """The command lines of all processes that name the folder, by id."""
    commands = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if str(folder) in command:
            commands[int(path.parent.name)] = command
    return commands


def test_sigterm_ends_the_launcher_too(tmp_path):
    benchmark = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.faults", "--faults=1"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while benchmark.poll() is None and not any("mmjax.launch" in text for text in processes_of(tmp_path).values()):
            os.sched_yield()
        benchmark.send_signal(signal.SIGTERM)
        assert benchmark.wait(60) == 128 + signal.SIGTERM
        assert processes_of(tmp_path) == {}
    finally:
        benchmark.kill()
        benchmark.wait()
        for pid in processes_of(tmp_path):
            os.kill(pid, signal.SIGKILL)
