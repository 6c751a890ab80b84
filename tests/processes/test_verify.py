"""Layouts in several processes, by the command: every default one in two, and a pipeline as one program in up to eight.

More processes take minutes a layout on two cores, for each compiles every program of its own devices.
"""

import os
import pathlib
import subprocess
import sys

import pytest

import mmjax
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.xla_flags import xla_flags

pytestmark = pytest.mark.processes

HOME = pathlib.Path(mmjax.__file__).resolve().parents[1]
DEVICES = 8
LAYOUTS = 36  # that `mmjax verify --gin_file=tiny.gin` has by default with as many devices
ONE_PROGRAM = Plan(
    (
        UnitPlan("vision", ("vision",), (0, 7), dp=2, layers=(3,)),
        UnitPlan(
            "backbone",
            ("backbone",),
            (3, 4, 5, 6),
            cp=2,
            layers=(2, 2),
            recompute=("none",) * 2,
            executor="compiled",
        ),
        UnitPlan("generator", ("generator",), (1,)),
    ),
    microbatches=3,
)
"""Of two processes, and of four, some have ranks of the pipeline and some none; the generator is in the first."""


def verify(folder, processes, *arguments):
    """What `mmjax verify` prints in so many processes; fails if it does."""
    command = [sys.executable, "-m", "mmjax.launch", f"--processes={processes}", f"--devices={DEVICES // processes}"]
    environment = {"PYTHONPATH": str(HOME), "XLA_FLAGS": xla_flags(DEVICES // processes)}
    done = subprocess.run(
        [*command, "--", "verify", "--gin_file=tiny.gin", "--steps=1", *arguments],
        cwd=folder,
        env=os.environ | environment | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_layout_agrees_in_two(tmp_path):
    said = verify(tmp_path, 2)
    assert f"all {LAYOUTS} layouts agree with the single-device reference" in said


@pytest.mark.parametrize("processes", [2, 4, 8], ids="in_{}".format)
def test_a_pipeline_as_one_program_with_context_parallel_ranks_agrees(processes, tmp_path):
    """No default layout has both."""
    (tmp_path / "plan.json").write_text(ONE_PROGRAM.to_json())
    said = verify(tmp_path, processes, "--plan=plan.json")
    assert "all 1 layouts agree with the single-device reference" in said
