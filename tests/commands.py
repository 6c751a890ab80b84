"""The package's commands, run as users run them: in processes of their own."""

import subprocess
import sys

_ALONE = """
import runpy, sys
module, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
finally:
    print("jax is there" if "jax" in sys.modules else "no jax", file=sys.stderr)
"""


def run_command(module: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess:
    """Runs `python -m module`; fails with what it said if it does not end with the code."""
    return _run("-m", module, *arguments, code=code)


def run_without_jax(module: str, *arguments: str) -> subprocess.CompletedProcess:
    """The same, and fails if the command brings jax in or says anything on stderr."""
    done = _run("-c", _ALONE, module, *arguments, code=0)
    assert done.stderr.strip() == "no jax"
    return done


def _run(*arguments: str, code: int) -> subprocess.CompletedProcess:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done
