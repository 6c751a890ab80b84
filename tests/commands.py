"""The package's commands: called in this process, or run as users run them, in processes of their own.

A process takes seconds to import everything, so most calls are made here. In a process types are not checked: there a
training run is planned in half the time, for which hundreds of samples are drawn.
"""

import contextlib
import importlib
import io
import pathlib
import subprocess
import sys

import gin

from mmjax import cli
from mmjax.training.metrics import activity

_ALONE = """
import runpy, sys
module, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
finally:
    print("jax is there" if "jax" in sys.modules else "no jax", file=sys.stderr)
"""


def call_command(name: str, *arguments: str, folder: pathlib.Path | str = ".") -> subprocess.CompletedProcess:
    """Calls `mmjax.NAME` in this process and in a folder: its checks, its work, its exit code and what it prints.

    What is only said where a machine is slow is not said.
    """
    command = importlib.import_module(f"mmjax.commands.{name}").COMMAND
    output, errors, patience = io.StringIO(), io.StringIO(), activity.PATIENCE
    activity.PATIENCE = 3600.0
    with contextlib.chdir(folder), contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = cli.exit_code(lambda: command.prepare(command.parse(arguments))())
        finally:
            activity.PATIENCE = patience
            gin.clear_config()
    return subprocess.CompletedProcess([name, *arguments], code, output.getvalue(), errors.getvalue())


def run_command(module: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess:
    """Runs `python -m module`; fails with what it said if it does not end with the code."""
    return _run("-m", module, *arguments, code=code)


def run_without_jax(module: str, *arguments: str) -> subprocess.CompletedProcess:
    """The same, and fails if the command brings jax in or says anything but its progress on stderr."""
    done = _run("-c", _ALONE, module, *arguments, code=0)
    *progress, last = done.stderr.strip().splitlines()
    assert last == "no jax" and all(line.startswith(("compar", "read", "group")) for line in progress), done.stderr
    return done


def _run(*arguments: str, code: int) -> subprocess.CompletedProcess:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done
