"""What the command that compiles a plan refuses, without a plugin to compile with."""

import pytest

from mmjax.training.dry_run.targets import missing_plugin
from sharding.plans.plan import Plan
from tests.commands import call_command
from tests.unit_plans import module_unit


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    Plan((module_unit("vision", (0,), layers=(23,)), module_unit("backbone", (1,), layers=(32,)))).save(path)
    return path


def refused(*arguments: str) -> str:
    done = call_command("dryrun", *arguments)
    assert done.returncode == 2 and not done.stdout
    return done.stderr


def test_a_plan_is_needed():
    assert refused().startswith("error: --plan is missing: give a plan file")


def test_an_unknown_target_is_refused_with_the_known_ones(plan):
    told = refused(f"--plan={plan}", "--gin_file=models/llava_1_6_7b.gin", "--target=h10")
    assert "'h10' is not one of a100, b200, h100, h200; did you mean h100?" in told


def test_a_plan_of_another_model_is_refused(plan):
    told = refused(f"--plan={plan}", "--gin_file=models/qwen3_vl_8b.gin")
    assert told == ("error: unit vision: layers [23] add up to 23, but its modules have 27 (vision 27)\n")


@pytest.mark.skipif(not missing_plugin(), reason="the plugin is installed")
def test_without_the_plugin_one_line_says_what_to_install(plan):
    told = refused(f"--plan={plan}", "--gin_file=models/llava_1_6_7b.gin")
    assert told == "error: JAX has no CUDA plugin here: pip install -e '.[aot]' (5.5 GB)\n"
