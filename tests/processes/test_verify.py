"""Layouts in several processes, by the command: default ones in two, and a pipeline as one program in two and eight.

Every process compiles the programs of its own devices, half a minute a layout on two cores. All default layouts are
compared in one process (tier `layouts`); here are as many of them as have everything that any has.
"""

import dataclasses
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

import mmjax
from mmjax import cli
from mmjax.training.config import TrainConfig
from mmjax.training.verification.layouts.default_layouts import default_layouts
from mmjax.training.verification.layouts.divided_plans import GlobalRows
from mmjax.training.verification.layouts.layout_kinds import NamedLayout
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import module_graph
from tests.unit_plans import module_unit
from tests.xla_flags import xla_flags

pytestmark = pytest.mark.processes

HOME = pathlib.Path(mmjax.__file__).resolve().parents[1]
DEVICES = 8
ONE_PROGRAM = Plan(
    (
        module_unit("vision", (0, 7), layers=(3,), dp=2),
        module_unit("backbone", (3, 4, 5, 6), layers=(2, 2), executor="compiled", cp=2),
        module_unit("generator", (1,)),
    ),
    microbatches=3,
)
"""Of two processes both have ranks of the pipeline, of eight some have none."""


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


def features(layout: NamedLayout) -> set[tuple[Any, ...]]:
    """What a layout has that the plan of one device has not, by the modules of its units."""
    own_features = {
        ("transport", layout.transport),
        ("attention", layout.attention),
        ("schedule", layout.plan.schedule),
    }
    for unit in layout.plan.units:
        plain = UnitPlan(unit.name, unit.modules, (0,))
        records = ((unit, plain), (unit.parallelism, plain.parallelism), (unit.schedule_hints, plain.schedule_hints))
        for record, default in records:
            for field in {field.name for field in dataclasses.fields(record)} - {
                "devices",
                "parallelism",
                "schedule_hints",
            }:
                value = getattr(record, field)
                if value != getattr(default, field):
                    own_features.add((unit.modules, field, value if isinstance(value, str) else ""))
    return own_features


def fewest_with_all_features(layouts: list[NamedLayout]) -> list[NamedLayout]:
    """Layouts that together have what all have, each the one that adds most."""
    missing, chosen = set().union(*map(features, layouts)), []
    while missing:
        chosen.append(max(layouts, key=lambda layout: len(features(layout) & missing)))
        missing -= features(chosen[-1])
    return chosen


def test_layouts_with_all_that_default_ones_have_agree_in_two(tmp_path):
    cli.parse_gin(("tiny.gin",))
    config = cli.configured(TrainConfig)
    rows = GlobalRows.from_data(config.model, config.data)
    layouts, refused = default_layouts(module_graph(config.model), rows, DEVICES)
    chosen = fewest_with_all_features([layout.across_processes() for layout in layouts])
    assert not refused and 8 <= len(chosen) < len(layouts) / 2
    said = verify(tmp_path, 2, *(f"--only={layout.name}" for layout in chosen))
    assert f"all {len(chosen)} layouts agree with the single-device reference" in said


@pytest.mark.parametrize("processes", [2, 8], ids="in_{}".format)
def test_a_pipeline_as_one_program_with_context_parallel_ranks_agrees(processes, tmp_path):
    """No default layout has both."""
    (tmp_path / "plan.json").write_text(ONE_PROGRAM.to_json())
    said = verify(tmp_path, processes, "--plan=plan.json")
    assert "the layout agrees with the single-device reference" in said
