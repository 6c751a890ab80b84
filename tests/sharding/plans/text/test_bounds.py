"""Plan files with numbers and names that no plan has: refused by name in a line, before anything is made of them."""

import json
import os
import pathlib

import pytest

from configs.common.shown_text import one_line
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.text.bounds import MAX_MICROBATCHES, MAX_UNITS

UNIT = {"name": "all", "modules": ["vision", "backbone"], "devices": "0"}


def text(unit=None, **fields) -> str:
    return json.dumps({"units": [UNIT | (unit or {})], **fields})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (text(microbatches=10**9), "microbatches is 1000000000; it must be at least 1 and at most 16384"),
        (text({"phase_rows": 2 * 10**15}), "unit all: phase_rows has 2e.15; it may be at most 4.1943e.06"),
        (text({"phase_rows": 1, "capacities": [2**60]}), "unit all: capacities has 1.15292e.18; it may be at most"),
        (text({"layers": [10**9]}), "unit all: layers has 1e.09; it may be at most 65536"),
        (text({"layers": [1] * 5000}), "unit all: 5000 stages in layers; give at most 4096"),
        (
            text({"schedule_hints": {"extra_microbatches": 10**12}}),
            r"units\[0\]\.schedule_hints: extra_microbatches has 1e.12",
        ),
        (
            text({"schedule_hints": {"forward_seconds": [1e300], "backward_seconds": [1.0]}}),
            r"units\[0\]\.schedule_hints: forward_seconds has 1e.300",
        ),
        (text({"parallelism": {"dp": 10**12}}), "unit all: dp 1000000000000 .* needs 1000000000000 devices"),
        (
            text({"parallelism": {"pipeline_replicas": 2**40, "tp": 2**20}}),
            "unit all: pipeline_replicas .* devices, but it lists 1",
        ),
        (text({"name": "\x1b[2J"}), r"'\\x1b\[2J' is not a name; use at most 100 printable characters"),
        (text({"name": "n" * 10**6}), "nnn' is not a name"),
        (text({"modules": ["vision\n"]}), r"'vision\\n' is not a name"),
        (text(schedule="1f1b\x07"), r"the plan's schedule: '1f1b\\x07' is not a name"),
        (json.dumps({"units": [UNIT] * 100_000}), "the plan has 100000 units; it may have at most 1024"),
    ],
)
def test_a_plan_file_out_of_bounds_is_refused_by_name(document, message):
    with pytest.raises(PlanError, match=message) as caught:
        Plan.from_json(document)
    assert len(one_line(str(caught.value))) <= 500


def test_the_largest_plans_are_read():
    units = [UNIT | {"name": f"unit {number}", "modules": [f"m{number}"]} for number in range(MAX_UNITS)]
    plan = Plan.from_json(json.dumps({"units": units, "microbatches": MAX_MICROBATCHES}))
    assert len(plan.units) == MAX_UNITS and plan.microbatches == MAX_MICROBATCHES


def test_a_name_that_looks_like_markup_is_a_name():
    assert Plan.from_json(text({"name": "[/bold]"})).units[0].name == "[/bold]"


def test_a_pipe_that_never_ends_is_refused(tmp_path: pathlib.Path):
    os.mkfifo(tmp_path / "plan.json")
    with pytest.raises(PlanError, match=r"plan\.json is not a file but a pipe or a device"):
        Plan.load(tmp_path / "plan.json")
