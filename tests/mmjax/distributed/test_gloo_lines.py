"""What native code and Python print in a process that hides Gloo's lines."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

PRINTING = """
import ctypes, os, subprocess, sys
from mmjax.distributed.gloo_lines import hide_gloo_lines
print("before")
hide_gloo_lines()
native = ctypes.CDLL(None)
def say(text, flush=True):
    native.printf(b"%s", text)
    flush and native.fflush(None)
for rank in range(1000):
    say(b"[Gloo] Rank %d is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\\n" % rank)
say(b"[Glo"); say(b"o] Rank 7 in two pieces\\n"); say(b"[Gloo] failed\\n"); say(b"two "); say(b"pieces\\n")
subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
print("python", flush=True)
os.write(2, b"[Gloo] Rank 0 failed\\n")
say(b"no end of line")
"""


def test_gloo_lines_alone_are_hidden_and_none_on_standard_error():
    done = subprocess.run([sys.executable, "-c", PRINTING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(
        ["before", "[Gloo] failed", "two pieces", "from a child", "python", "no end of line"]
    )
    assert done.stderr == "[Gloo] Rank 0 failed\n"


def test_native_code_does_not_wait_where_nobody_reads_the_output():
    command = PRINTING.partition("for rank")[0] + "say(b'ready\\n')\nsys.stdin.read()\n"
    command += "for _ in range(5000): say(b'x' * 100 + b'\\n')\nprint('end', file=sys.stderr)\n"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", command], **pipes) as process:
        assert [process.stdout.readline() for _ in range(2)] == [b"before\n", b"ready\n"]
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b"end\n"
    assert process.returncode == 0
