"""`python -m mmjax.report`: without jax, on the workdirs of runs, and what it refuses."""

import dataclasses
import json
import pathlib

import gin
import pytest

from configs.clusters import CLUSTERS
from mmjax import cli
from mmjax.commands import report
from mmjax.reporting.run_folder import open_run
from sharding.plans.plan_purpose import PlanPurpose
from tests.commands import call_command, run_without_jax
from tests.mmjax.reporting.workdirs import PLAN, write_start, write_steps
from tests.sharding.html.documents import parsed_page, words

# The model of configs/tiny.gin on a plan without a generator would be refused, so it has none.
GIN = """
from __gin__ import dynamic_registration
from configs import architectures
from data import data_config
from data.datasets import easy_vqa
from mmjax.training import config
include "tiny.gin"
config.TrainConfig:
  dataset = @easy_vqa.EasyVQA
  model = @architectures.ModelConfig()
  data = @data_config.DataConfig()
architectures.ModelConfig.generators = ()
architectures.VisionConfig.depth = 2
architectures.BackboneConfig.depth = 3
"""


def make_workdir(folder: pathlib.Path) -> pathlib.Path:
    """The workdir of a run that goes on."""
    write_start(folder, 0)
    write_steps(folder, range(1, 4))
    (folder / cli.OPERATIVE_CONFIG).write_text(GIN)
    return folder


@pytest.mark.processes
def test_the_page_of_a_run_is_written_without_jax(tmp_path):
    workdir = make_workdir(tmp_path / "run")
    done = run_without_jax("mmjax.report", f"--workdir={workdir}")
    assert done.stdout == f"Written to {workdir / 'report.html'}\n"
    root = parsed_page((workdir / "report.html").read_text())
    assert "Simulated with the analytic costs of the cluster cpu" in words(root)
    assert "The devices share the cores of one host" in words(root)
    assert [unit.name for unit in PLAN.units][0] in words(root)


@pytest.mark.processes
def test_a_run_whose_modules_are_not_here_has_a_page_without_a_prediction(tmp_path):
    workdir, page = make_workdir(tmp_path / "run"), tmp_path / "page.html"
    (workdir / cli.OPERATIVE_CONFIG).write_text("from __gin__ import dynamic_registration\nimport of_another_machine\n")
    run_without_jax("mmjax.report", f"--workdir={workdir}", f"--page={page}")
    told = words(parsed_page(page.read_text()))
    assert "The step is not simulated:" in told and "of_another_machine" in told
    assert not (workdir / "report.html").exists()


def test_a_damaged_plan_or_configuration_is_named_where_the_step_is_not_predicted(tmp_path):
    workdir = make_workdir(tmp_path / "run")
    plan = json.loads((workdir / "plan.json").read_text())
    spoiled = {
        "module vision is in no unit": {"plan.json": plan | {"units": plan["units"][1:]}},
        "7 microbatches": {"plan.json": plan | {"microbatches": 7}},
        "operative.gin": {"operative.gin": "config.TrainConfig.steps = ((("},
        "Unable to parse value": {"operative.gin": "steps = \0"},
    }
    for reason, files in spoiled.items():
        make_workdir(workdir)
        for name, content in files.items():
            (workdir / name).write_text(content if isinstance(content, str) else json.dumps(content))
        predicted = report._predicted(open_run(workdir))
        assert isinstance(predicted, str) and reason in predicted, predicted
    make_workdir(workdir)
    assert not isinstance(report._predicted(open_run(workdir)), str)
    gin.clear_config()


def test_hops_of_a_simulated_step_are_those_of_the_runs_processes_wherever_its_devices_are(tmp_path):
    """A node of the cluster has eight devices, and the plan takes six."""
    workdir = make_workdir(tmp_path / "run")
    for processes, hops, rendezvous in ((1, "rendezvous", False), (2, "asynchronous", True)):
        (workdir / "starts.jsonl").unlink()
        write_start(workdir, 0, processes=processes)
        made_for = PlanPurpose(cluster="cpu", devices=6, hops=hops)
        dataclasses.replace(PLAN, made_for=made_for).save(workdir / "plan.json")
        assert report._predicted(open_run(workdir)).timeline.rendezvous == rendezvous
    (workdir / "starts.jsonl").unlink()
    (workdir / "summary.json").write_text(json.dumps({"steps": 3, "devices": "6 x cpu"}))
    assert not report._predicted(open_run(workdir)).timeline.rendezvous
    gin.clear_config()


def test_a_step_is_simulated_on_the_cluster_and_without_the_effects_that_its_plan_was_made_for(tmp_path):
    workdir = make_workdir(tmp_path / "run")
    described = dataclasses.replace(CLUSTERS["h100"], name="mine", device_kinds=())
    purpose = PlanPurpose(cluster="mine", described_cluster=described)
    steps = {}
    for without in ((), ("jitter", "throttling")):
        made_for = dataclasses.replace(purpose, without=without)
        dataclasses.replace(PLAN, made_for=made_for).save(workdir / "plan.json")
        predicted = report._predicted(open_run(workdir))
        steps[predicted.costs] = predicted.timeline.step
    of_mine = "the analytic costs of the cluster mine"
    assert steps[f"{of_mine} without jitter, throttling"] < steps[of_mine]
    gin.clear_config()


def test_what_is_no_run_or_cannot_be_written_is_refused_in_a_line(tmp_path):
    workdir = make_workdir(tmp_path / "run")
    for arguments, message in {
        (): "--workdir is missing",
        ("--workdir=/nowhere",): "there is no folder /nowhere",
        (f"--workdir={tmp_path}",): "is no run's workdir",
        (f"--workdir={workdir}", f"--page={tmp_path}/nowhere/page.html"): "--page: there is no folder",
    }.items():
        done = call_command("report", *arguments)
        assert done.returncode == cli.USAGE_ERROR
        assert done.stderr.startswith("error: ") and message in done.stderr and done.stderr.count("\n") == 1
