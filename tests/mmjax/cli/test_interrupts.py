"""Ctrl-C in a command whose main thread does not return to Python, as while a program is compiled."""

import signal
import subprocess
import sys

import pytest

from configs.common.errors import INTERRUPTED

pytestmark = pytest.mark.processes

COMPUTING = """
import contextlib, dataclasses, hashlib, signal
from mmjax import cli

@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    handled: bool = cli.flag(False, "Handles SIGINT itself.")

def prepare(arguments):
    if arguments.handled:
        signal.signal(signal.SIGINT, lambda *_: print("handled", flush=True))
    def work():
        with contextlib.suppress(*{ignored}):  # a Ctrl-C that comes before the call
            print("ready", flush=True)
        hashlib.pbkdf2_hmac("sha256", b"", b"", {rounds})  # a long call that runs no Python code
    return work

cli.run(cli.Command(name="computing", summary="Computes.", examples=(), arguments=Arguments, prepare=prepare))
"""
FOR_EVER, SECONDS = 2**31 - 1, 3_000_000


def started(rounds: int, *flags: str) -> subprocess.Popen:
    command = [
        sys.executable,
        "-c",
        COMPUTING.format(rounds=rounds, ignored="[KeyboardInterrupt]" if rounds == FOR_EVER else "[]"),
        *flags,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def test_the_first_interrupt_is_answered_and_the_second_ends_the_command():
    with started(FOR_EVER) as process:
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "\n"
        assert process.stderr.readline().startswith("stopping when the program that runs or compiles now ends; Ctrl-C")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == INTERRUPTED
        assert process.stderr.read() == "\nleft at once\n"


def test_an_answered_command_stops_when_the_call_ends():
    with started(SECONDS) as process:
        process.send_signal(signal.SIGINT)
        assert process.stderr.readlines()[-1] == "interrupted\n"
        assert process.wait() == INTERRUPTED


def test_a_command_that_handles_interrupts_itself_is_left_to_it():
    with started(SECONDS, "--handled") as process:
        for _ in range(2):
            process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "" and process.wait() == 0
        assert process.stdout.read().startswith("handled\n")
