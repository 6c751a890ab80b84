"""Processes that end although nobody takes their output."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

LEAVE = """
import os, sys
from mmjax.training.heartbeat import leaving
def fill(descriptor):
    os.set_blocking(descriptor, False)
    try:
        while os.write(descriptor, b"x" * 4096):
            pass
    except BlockingIOError:
        os.set_blocking(descriptor, True)
sys.stdout.write("buffered")
"""
BEGINNINGS = {
    "closed": "os.close(1); os.close(2)\n",
    "closed by Python": "sys.stdout.close()\n",
    "full": "fill(1); fill(2)\n",
    "full standard error": "fill(2)\n",
}


@pytest.mark.parametrize("output", BEGINNINGS)
def test_output_that_nobody_takes_keeps_no_process(output):
    endings = {75: "leaving.leave('the reason', [])", 69: "leaving.leave_at_once(69)"}
    started = {
        code: subprocess.Popen(
            [sys.executable, "-c", LEAVE + BEGINNINGS[output] + ending], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for code, ending in endings.items()
    }
    try:
        assert {code: process.wait(60) for code, process in started.items()} == {code: code for code in endings}
    finally:
        for process in started.values():
            process.kill()
            process.communicate()
