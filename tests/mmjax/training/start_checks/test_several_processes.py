"""Three processes that differ: in their clocks, which is a warning, and in their data, which is an error.

An error ends a process although another one waits for it.
"""

import os
import signal
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

SCRIPT = """
import dataclasses, sys, time
from mmjax import cli
def work():
    import jax
    from mmjax.training.start_checks.checks import check_alike, check_start
    from mmjax.training.start_checks.identity import run_identity
    from sharding.runtime.coordination import wait_for_processes
    process = jax.process_index()
    check_start(run_identity("configuration", "plan"), clock=lambda: time.time() + 3600 * (process == 1))
    try:
        check_alike("data", {"data": "other" if process == 2 else "same"})
    except cli.UserError as error:
        if process:
            raise
        print(f"error: {error}", file=sys.stderr, flush=True)
        wait_for_processes("what the others never come to")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    pass
command = cli.Command(
    name="", summary="", examples=(), arguments=Arguments, prepare=lambda arguments: work, distributed=True
)
cli.run(command, [])
"""


def test_all_processes_say_which_differ_in_what():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    variables = os.environ | {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "3"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env=variables | {"JAX_PROCESS_ID": str(process)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(3)
    ]
    try:
        said = [process.communicate(timeout=120)[1] for process in started[1:]]
        started[0].kill()
        said.insert(0, started[0].communicate()[1])
    finally:
        for process in started:
            process.kill()
            process.wait()
    host = socket.gethostname()
    error = (
        f"error: the processes of this run differ: data is other in process 2 ({host}), and same elsewhere. "
        "Give all hosts the same installation and command line\n"
    )
    warning = f"the clock of process 1 ({host}) is 3600 s ahead of that of process "
    assert [process.returncode for process in started] == [-signal.SIGKILL, 2, 2], said
    assert said[1] == said[2] == error
    assert warning in said[0] and said[0].endswith(error)
