"""`python -m mmjax.verify` as a user meets it."""

import collections
import json
import os
import pathlib
import subprocess
import sys

import pytest

import mmjax
from data.packing.batch_spec import global_batch_spec
from data.packing.dealt_phases import plan_phase_rows
from data.packing.pipeline import training_batches
from mmjax import cli
from mmjax.training.config import TrainConfig
from mmjax.training.verification.layouts.default_layouts import default_layouts
from mmjax.training.verification.layouts.divided_plans import GlobalRows
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import module_graph
from tests.commands import call_command

MODULES = ("vision", "backbone", "generator")
HOME = pathlib.Path(mmjax.__file__).resolve().parents[1]

FAULTY = """
import jax
from sharding.runtime.stages.master_weights import StageMasterWeights

make_reduce = StageMasterWeights.make_reduce

def reduce_one_replica(self, trained_keys):
    reduce = make_reduce(self, trained_keys)
    return lambda gradients: reduce(jax.tree.map(lambda leaf: leaf.at[1:].set(0), gradients))

StageMasterWeights.make_reduce = reduce_one_replica

from mmjax import cli
from mmjax.commands import verify
cli.run(verify.COMMAND)
"""


@pytest.fixture(scope="module", autouse=True)
def shared_compilation_cache(tmp_path_factory):
    """The programs of the reference are compiled by the first command alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def verify(folder, *arguments, module=("-m", "mmjax.verify")):
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    command = [sys.executable, *module, "--gin_file=tiny.gin", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


def tiny_run():
    """The configuration of the command in these tests, the spec of its batches, and the default layouts."""
    cli.parse_gin(("tiny.gin",))
    config = cli.configured(TrainConfig)
    spec = global_batch_spec(config.data, config.model).arrays
    layouts, refused = default_layouts(module_graph(config.model), GlobalRows.from_data(config.model, config.data), 8)
    return config, spec, layouts, refused


def test_microbatches_of_the_default_layouts_have_every_capacity_and_sometimes_no_item():
    config, spec, layouts, _ = tiny_run()
    batches = training_batches(config.data, config.model, config.dataset("train"))
    arrays = [next(batches).arrays for _ in range(2)]
    batches.close()
    capacities = collections.defaultdict(set)
    for layout in layouts:
        phases = plan_phase_rows(layout.plan, config.model, spec)
        for batch_arrays in arrays:
            for module, numbers in phases.capacities(phases.deal(batch_arrays)).items():
                capacities[module, len(phases.phases[module].capacities)].update(numbers)
    assert capacities == {
        ("vision", 1): {0, None},
        ("vision", 2): {0, 1, None},
        ("generator", 1): {0, None},
        ("generator", 2): {0, 1},
    }


@pytest.mark.processes
def test_layouts_of_the_default_list_agree(tmp_path):
    """Two of two capacities, one with copies; `.ci/run` lets the command itself try all, which takes minutes."""
    _, _, layouts, refused = tiny_run()
    assert len(layouts) >= 12 and not refused
    two_capacity_plans = [layout.plan for layout in layouts if layout.plan.unit_of("vision").capacities]
    by_copies = {plan.unit_of("vision").parallelism.pipeline_replicas: plan for plan in two_capacity_plans}
    chosen = {f"{copies}.json": by_copies[copies] for copies in (1, 2)}
    for name, plan in chosen.items():
        plan.save(tmp_path / name)
    result = verify(tmp_path, "--json", "--steps=1", *(f"--plan={name}" for name in chosen))
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert set(report) == {"ok", "stopped", "layouts"} and (report["ok"], report["stopped"]) == (True, False)
    assert [layout["layout"] for layout in report["layouts"]] == list(chosen) and len(chosen) == 2
    for layout in report["layouts"]:
        assert layout["ok"] is True and set(layout["modules"]) == {*MODULES, "all modules"}
        assert layout["modules"]["vision"]["loss"] is None
        for name, module in layout["modules"].items():
            gradient = module["gradient"]
            assert gradient["error"] <= gradient["tolerance"] < 1e-3 and gradient["what"]
            assert gradient["error"] > 0 or name == "all modules"
            assert bool(module["update"]) == (name != "all modules") and bool(module["evaluation"]) == (
                name != "vision"
            )


@pytest.fixture
def plan(tmp_path):
    Plan((UnitPlan("all", MODULES, (0, 1), layers=(8,), parallelism=Parallelism(dp=2)),)).save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


@pytest.mark.processes
def test_a_missing_reduction_ends_with_1_and_says_where(tmp_path, plan):
    (tmp_path / "faulty.py").write_text(FAULTY)
    result = verify(tmp_path, f"--plan={plan}", "--steps=1", "--json", module=("faulty.py",))
    assert result.returncode == 1, result.stdout + result.stderr
    report = json.loads(result.stdout)
    (layout,) = report["layouts"]
    assert (report["ok"], layout["ok"], layout["layout"]) == (False, False, str(plan))
    for name in MODULES:
        assert layout["modules"][name]["gradient"]["error"] > 0.1 and not layout["modules"][name]["ok"]
    assert layout["modules"]["backbone"]["loss"]["error"] < 1e-5


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        (None, "there is no plan file"),
        ("{", "plan.json: the plan is not JSON"),
        (Plan((UnitPlan("all", ("vision",), (0,), layers=(3,)),)).to_json(), "module backbone is in no unit"),
    ],
)
def test_a_plan_that_cannot_be_ends_with_2_and_names_the_file(tmp_path, text, culprit):
    if text is not None:
        (tmp_path / "plan.json").write_text(text)
    result = call_command("verify", "--gin_file=tiny.gin", f"--plan={tmp_path / 'plan.json'}")
    assert result.returncode == 2 and result.stderr.startswith("error: ")
    assert culprit in result.stderr and "plan.json" in result.stderr


def test_text_that_no_layout_has_in_its_name_is_refused():
    done = call_command("verify", "--gin_file=tiny.gin", "--only=fsdq")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --only=fsdq: none of the 37 layouts has this in its name, such as ")
