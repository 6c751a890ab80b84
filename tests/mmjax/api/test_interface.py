"""`import mmjax`: what it offers, without starting anything, and configurations, plans and reports by calls."""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys

import jax
import pytest

import mmjax
from configs.common.errors import UserError
from configs.cost_effects import EFFECT_NAMES
from mmjax.training.metrics import activity
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.commands import call_command

HOME = pathlib.Path(mmjax.__file__).resolve().parents[1]

ONE_UNIT = Plan((UnitPlan("all", ("vision",), (0,)),))

OFFERS = """
import sys
import mmjax
started = {"jax", "gin", "numpy"} & set(sys.modules)
import mmjax.commands.plan
print(sorted(started), sorted(set(mmjax.__all__) - set(dir(mmjax))), mmjax.plan.__module__)
"""


@pytest.mark.processes
def test_importing_it_starts_nothing_and_the_names_are_functions_not_commands():
    done = subprocess.run([sys.executable, "-c", OFFERS], capture_output=True, text=True, cwd=HOME)
    assert done.stdout.split() == ["[]", "[]", "mmjax.api.planning"], done.stderr


def test_every_name_is_there_and_documented():
    for name in mmjax.__all__:
        assert getattr(mmjax, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'plans'"):
        mmjax.plans  # noqa: B018


def test_the_site_has_the_reference_of_every_name():
    reference = (HOME / "docs" / "site" / "reference.md").read_text()
    assert {name for name in mmjax.__all__ if f":: mmjax.{name}\n" in reference} == set(mmjax.__all__)


def test_a_configuration_is_a_files_with_bindings_then_fields_over_it():
    config = mmjax.load("tiny.gin", "DataConfig.seed = 5", steps=7, plan="plans/quickstart.json")
    assert (config.steps, config.data.seed, config.data.rows) == (7, 5, 12)
    assert config.plan == "plans/quickstart.json"
    assert dataclasses.replace(config, steps=4, plan="").model == mmjax.load("tiny.gin").model


def test_another_configuration_does_not_change_the_data_set_of_the_first(tmp_path):
    for name, answer in (("first", "yes"), ("second", "no")):
        turns = [{"from": "human", "value": "is it so?"}, {"from": "gpt", "value": answer}]
        (tmp_path / f"{name}.json").write_text(json.dumps([{"id": name, "conversations": turns}]))
    configs = [
        mmjax.load("llava.gin", f"FILE = '{tmp_path / name}.json'", f"FOLDER = '{tmp_path}'")
        for name in ("first", "second")
    ]
    records = [config.dataset("train").sources[0][1] for config in configs]
    assert [record[0].turns[-1].parts[0].text for record in records] == ["yes", "no"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mmjax.load("tiny.gin", step=3), "TrainConfig has no field step; did you mean steps"),
        (lambda: mmjax.load("models/mllm_9b.gin"), "TrainConfig.dataset"),
        (lambda: mmjax.load("tinny.gin"), "tiny.gin"),
        (lambda: mmjax.generate("nowhere", "why?"), "nowhere"),
        (lambda: mmjax.simulate("configs/nowhere.json"), "nowhere.json cannot be read"),
        (lambda: mmjax.simulate(ONE_UNIT), "needs a subject: the plan does not name the configuration"),
        (lambda: mmjax.plan("models/mllm_9b.gin", cluster="a8000"), "a800"),
        (lambda: mmjax.plan("models/mllm_9b.gin", without=["noise"]), "no effect 'noise'; choose from throttling, "),
        (lambda: mmjax.plan("models/mllm_9b.gin", hops="both"), "hops 'both'; choose from auto, asynchronous"),
        (lambda: mmjax.use_cpu_devices(9), "jax has started with 8 devices"),
    ],
)
def test_mistakes_are_errors_of_one_line(call, message):
    assert jax.device_count() == 8  # the backend has started
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_plan_is_the_commands_and_its_simulated_step_is_the_simulators(tmp_path):
    comparison = mmjax.plan("models/mllm_9b.gin", cluster="a800", devices=24, rows=48, policy="disaggregated")
    path = tmp_path / "plan.json"
    line = ("--gin_file=models/mllm_9b.gin", "--cluster=a800", "--devices=24", "--batch_rows=48", f"--output={path}")
    call_command("plan", "--policy=disaggregated", *line)
    assert Plan.load(path) == comparison.plan
    timeline = mmjax.simulate(path, "models/mllm_9b.gin", cluster="a800", rows=48)
    assert timeline.step == mmjax.simulate(path).step == comparison.timeline.step
    assert [result.policy for result in comparison.results] == list(comparison.to_frame()["policy"])
    # 24 devices are three nodes, so that hops occupy both ends unless they are said not to.
    steps = {hops: mmjax.simulate(path, hops=hops) for hops in ("asynchronous", "rendezvous")}
    assert steps["asynchronous"].step < steps["rendezvous"].step == timeline.step
    assert timeline.rendezvous and not steps["asynchronous"].rendezvous
    without = mmjax.simulate(path, without=("jitter", "throttling")).step
    assert mmjax.simulate(path, without=EFFECT_NAMES).step < without < mmjax.simulate(path, without=["jitter"]).step
    printed = call_command("simulate", f"--plan={path}", "--json", "--without=jitter,throttling").stdout
    said = json.loads(printed)
    assert said["step_seconds"] == without < timeline.step
    assumed = dataclasses.replace(comparison.plan.made_for, hops="asynchronous", without=("jitter", "throttling"))
    plan = dataclasses.replace(comparison.plan, made_for=assumed)
    assert mmjax.simulate(plan, hops="auto").step == without and not mmjax.simulate(plan).rendezvous
    assert mmjax.simulate(plan, without=()).step == steps["asynchronous"].step


def test_a_training_run_is_planned_on_its_own_data():
    config = mmjax.load("tiny.gin")
    comparison = mmjax.plan(config, cluster="h100", devices=8, policy="rigid")
    assert comparison.problem.rows == config.data.rows and comparison.plan.device_count <= 8


def test_a_data_set_is_described():
    description = mmjax.describe_data(mmjax.load("tiny.gin"), samples=64)
    assert description.samples == 64


@pytest.fixture
def no_patience(monkeypatch):
    """Lets calls say from their start how far they are."""
    monkeypatch.setattr(activity, "PATIENCE", 0.0)


def without_times(said: str) -> list[str]:
    """Lines of progress up to their times."""
    return [re.split(r", | in \d", line)[0] for line in said.splitlines()]


def test_a_plan_that_takes_long_says_how_many_policies_are_compared(no_patience, capsys):
    mmjax.plan("models/mllm_9b.gin", cluster="h100", devices=8, rows=16, policy="rigid")
    assert without_times(capsys.readouterr().err) == [
        "comparing 0 of 1 planning policy",
        "compared 1 planning policy",
    ]


def test_a_description_that_takes_long_says_what_it_does(no_patience, capsys):
    mmjax.describe_data(mmjax.load("tiny.gin"), samples=3)
    assert without_times(capsys.readouterr().err) == [
        *(f"reading the sizes of {done} of 3 samples" for done in range(3)),
        *("read the sizes of 3 samples", "grouping 0 of 3 samples"),
    ]


def test_a_call_that_is_short_says_nothing(capsys, monkeypatch):
    monkeypatch.setattr(activity, "PATIENCE", 3600.0)
    mmjax.describe_data(mmjax.load("tiny.gin"), samples=3)
    assert capsys.readouterr().err == ""
