"""Every default layout in 2, 4 and 8 processes, by the command: all agree with one device."""

import os
import subprocess
import sys

import pytest

from tests.xla_flags import xla_flags

pytestmark = pytest.mark.processes

DEVICES = 8
LAYOUTS = 30  # that `mmjax verify --gin_file=tiny.gin` has by default with as many devices


@pytest.mark.parametrize("processes", [2, 4, 8], ids="in_{}".format)
def test_every_layout_agrees(processes, tmp_path):
    command = [sys.executable, "-m", "mmjax.launch", f"--processes={processes}", f"--devices={DEVICES // processes}"]
    done = subprocess.run(
        [*command, "--", "verify", "--gin_file=tiny.gin", "--steps=1"],
        cwd=tmp_path,
        env=os.environ | {"XLA_FLAGS": xla_flags(DEVICES // processes), "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"all {LAYOUTS} layouts agree with the single-device reference" in done.stdout
