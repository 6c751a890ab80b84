"""Real processes that form one jax cluster on this machine's CPU."""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

from tests.xla_flags import xla_flags


def run_cluster(module: str, device_counts: tuple[int, ...], *arguments: str, timeout: float = 120) -> list[str]:
    """Runs `python -m module rank port *arguments` once per entry of `device_counts`, together; returns what each said.

    Fails with all output if one fails, or if they take longer than `timeout` seconds; all are killed then.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    deadline = time.monotonic() + timeout
    # Files, not pipes: a process must not wait for its output to be read while another waits for it.
    with tempfile.TemporaryDirectory() as folder:
        logs = [pathlib.Path(folder, str(rank)) for rank in range(len(device_counts))]
        started = [
            _start([sys.executable, "-m", module, str(rank), port, *arguments], count, logs[rank])
            for rank, count in enumerate(device_counts)
        ]
        try:
            for process in started:
                process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in started:
                process.kill()
                process.wait()
        said = [log.read_text() for log in logs]
    codes = [process.returncode for process in started]
    assert codes == [0] * len(started), f"exit codes {codes} (-9: killed after {timeout} s)\n" + "\n---\n".join(said)
    return said


def _start(command: list[str], devices: int, log: pathlib.Path) -> subprocess.Popen:
    # XLA sizes its CPU thread pool by NPROC; two processes on two cores hang on jax 0.10.2 without it.
    environment = os.environ | {
        "NPROC": "16",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": xla_flags(devices),
    }
    with log.open("w") as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
