"""The command that simulates a plan: what it prints, draws and refuses."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from sharding.plans.plan import Plan
from sharding.specs.modules import module_graph
from tests.commands import call_command, run_command
from tests.profiles import synthetic_profile
from tests.tiny_model import tiny_model
from tests.unit_plans import module_unit


def simulate(*arguments):
    return call_command("simulate", *arguments)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    units = (
        module_unit("vision", (0, 1), layers=(32,), dp=2),
        module_unit("backbone", range(2, 18), layers=(16, 16), recompute=("full",) * 2, dp=2, tp=4),
        module_unit("generator", (18, 19), dp=2),
    )
    Plan(units, microbatches=16).save(path)
    return path


@pytest.mark.processes
def test_a_plan_is_simulated_and_drawn_without_jax(plan, tmp_path):
    page, trace = tmp_path / "timeline.html", tmp_path / "trace.json"
    (tmp_path / "jax.py").write_text("raise RuntimeError('a plan is simulated without jax')")
    flags = ("--gin_file=models/mllm_9b.gin", "--batch_rows=32", f"--page={page}", f"--trace={trace}", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "mmjax.simulate", f"--plan={plan}", *flags],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["plan"]["microbatches"] == 16 and document["devices"] == 20
    assert document["step_seconds"] > 0 and 0 < document["mfu"] < 1
    title = "Simulated step of mllm_9b on laion_like on 20 devices of a800, plan plan.json"
    assert page.read_text().startswith("<!doctype html>") and f"<h1>{title}</h1>" in page.read_text()
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_colocated_plan_says_what_idle_time_is_filled(tmp_path):
    path, page = tmp_path / "plan.json", tmp_path / "timeline.html"
    units = (
        module_unit("vision", range(16), layers=(32,), dp=2, tp=4, pipeline_replicas=2),
        module_unit("backbone", range(16), layers=(16, 16), recompute=("full",) * 2, dp=2, tp=4),
        module_unit("generator", (16, 17), dp=2),
    )
    Plan(units, microbatches=8).save(path)
    flags = (f"--plan={path}", "--gin_file=models/mllm_9b.gin", "--batch_rows=16")
    told = simulate(*flags, f"--page={page}")
    assert told.returncode == 0, told.stderr
    assert "filled by vision" in " ".join(told.stdout.split()) and "Scheduling efficiency:" in told.stdout
    copies = [line.split()[:3] for line in told.stdout.splitlines() if line.strip().startswith("vision ")]
    parts = told.stdout.count("(continued)") + 1  # each begins with what its rows are of
    assert copies == [["vision", "0", "0"], ["vision", "1", "0"]] * parts
    document = json.loads(simulate(*flags, "--json").stdout)
    (filled_idle,) = document["filled_idle"]
    assert (filled_idle["unit"], filled_idle["others"]) == ("backbone", ["vision"])
    assert 0 < filled_idle["filled_share"] < 1
    assert [(stage["unit"], stage["pipeline_replica"], stage["stage"]) for stage in document["stages"][:2]] == [
        ("vision", 0, 0),
        ("vision", 1, 0),
    ]
    assert "forward of vision" in page.read_text()


def test_stages_and_those_that_do_not_fit_are_printed(plan):
    done = simulate(f"--plan={plan}", "--gin_file=models/mllm_72b.gin", "--batch_rows=32", "--cluster=a800")
    assert done.returncode == 2 and "layers [16, 16] add up to 32, but its modules have 80" in done.stderr
    done = simulate(f"--plan={plan}", "--gin_file=models/mllm_9b.gin", "--batch_rows=32", "--cluster=cpu")
    assert done.returncode == 0 and "MFU" in done.stdout and done.stdout.startswith("A simulated step takes ")
    assert "backbone 0 does not fit: it needs" in done.stdout and "of the 2.0 GB of a device" in done.stdout


def test_a_layer_that_a_device_cannot_gather_is_refused(plan, tmp_path):
    vision, backbone, generator = Plan.load(plan).units
    backbone = dataclasses.replace(
        backbone, devices=tuple(range(2, 6)), parallelism=dataclasses.replace(backbone.parallelism, fsdp=2, tp=1)
    )
    Plan((vision, backbone, generator), microbatches=16).save(tmp_path / "plan.json")
    flags = ("--gin_file=models/mllm_9b.gin", "--batch_rows=32", "--cluster=cpu")
    done = simulate(f"--plan={tmp_path / 'plan.json'}", *flags)
    block = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    gathered = block * (2 * 2 + 2 + 4) / 1e6  # bfloat16 weights of two, gradients of one in bfloat16 and in float32
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"unit backbone: whatever its fsdp, a device gathers {gathered / 1e3:.1f} GB for a layer" in done.stderr
    assert f"of backbone (blocks), {gathered - 2000:.3f} MB more than the 2.0 GB of cpu" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--plan is missing"),
        (["--plan={plan}", "--cluster=a900"], "there is no cluster 'a900'; choose from a800"),
        (["--plan={plan}", "--gin_file=models/mllm_9b.gin", "--devices=8"], "needs device"),
        (
            ["--plan={plan}", "--gin_file=models/mllm_9b.gin", "--batch_rows=33"],
            "33 rows of the global batch are not divisible",
        ),
    ],
)
def test_mistakes_are_refused_in_one_line(plan, arguments, message):
    done = simulate(*(argument.format(plan=plan) for argument in arguments))
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_context_parallel_ranks_that_do_not_divide_the_rows_are_refused(tmp_path):
    units = (
        module_unit("vision", (0,), layers=(3,)),
        module_unit("backbone", (1, 2, 3), layers=(4,), cp=3),
        module_unit("generator", (0,)),
    )
    Plan(units).save(tmp_path / "plan.json")
    done = simulate(f"--plan={tmp_path / 'plan.json'}", "--gin_file=tiny.gin", "--cluster=cpu")
    assert done.returncode == 2 and "unit backbone: cp 3 takes two chunks a rank of each row, and 6" in done.stderr


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A plan file of the planner, and the step that it printed."""
    path = tmp_path_factory.mktemp("planned") / "plan.json"
    flags = ("--gin_file=models/mllm_9b.gin", "--cluster=h100", "--devices=24", "--batch_rows=48")
    done = call_command("plan", *flags, "--policy=disaggregated", f"--output={path}", "--json")
    return path, json.loads(done.stdout)["policies"][0]["step_seconds"]


def test_a_plan_file_is_all_that_a_simulation_needs(planned):
    path, step = planned
    done = simulate(f"--plan={path}", "--json")
    assert json.loads(done.stdout)["step_seconds"] == step
    assert done.stderr == (
        "from plan.json: --gin_file=models/mllm_9b.gin --cluster=h100 --devices=24 --data=laion_like --batch_rows=48 "
        "--trainable=all\n"
    )


def test_flags_override_what_a_plan_was_made_for_and_the_difference_is_said(planned):
    done = simulate(f"--plan={planned[0]}", "--json", "--cluster=a800", "--batch_rows=96", "--trainable=projectors")
    assert json.loads(done.stdout)["step_seconds"] > 0
    assert done.stderr.splitlines() == [
        "from plan.json: --gin_file=models/mllm_9b.gin --devices=24 --data=laion_like",
        "note: plan.json was made for trainable parts all (here projectors), rows 48 (here 96), "
        "cluster h100 (here a800)",
    ]


def test_hops_and_left_out_effects_of_a_plan_count_until_flags_say_otherwise(planned, tmp_path):
    path = tmp_path / "plan.json"
    assumed = {"hops": "asynchronous", "without": ("jitter", "dispatch")}
    plan = Plan.load(planned[0])
    dataclasses.replace(plan, made_for=dataclasses.replace(plan.made_for, **assumed)).save(path)
    flags = ("--hops=asynchronous", "--without=jitter,dispatch")
    recorded, given = simulate(f"--plan={path}", "--json"), simulate(f"--plan={planned[0]}", "--json", *flags)
    assert json.loads(recorded.stdout)["step_seconds"] == json.loads(given.stdout)["step_seconds"] < planned[1]
    assert recorded.stderr.splitlines() == [f"{simulate(f'--plan={planned[0]}').stderr.strip()} {' '.join(flags)}"]
    assert given.stderr.splitlines()[1:] == [
        "note: plan.json was made for hops rendezvous (here asynchronous), "
        "effects left out none (here jitter, dispatch)"
    ]
    other = simulate(f"--plan={path}", "--json", "--hops=auto", "--without=")
    assert json.loads(other.stdout)["step_seconds"] == planned[1]
    assert other.stderr.splitlines()[1:] == [
        "note: plan.json was made for hops asynchronous (here rendezvous), "
        "effects left out jitter, dispatch (here none)"
    ]


def test_a_plan_for_another_model_is_refused_with_the_numbers_of_both(planned):
    done = simulate(f"--plan={planned[0]}", "--gin_file=models/mllm_15b.gin")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "the plan was made for another model: " in done.stderr and "layers of backbone 32 (here 40)" in done.stderr


def test_another_width_of_the_same_layers_is_said(planned):
    width = "--gin.llama2_7b/BackboneConfig.ffn=8192"
    done = simulate(f"--plan={planned[0]}", "--gin_file=models/mllm_9b.gin", width, "--json")
    assert done.returncode == 0, done.stderr
    assert "note: plan.json was made for parameters of backbone 6,738,415,616 (here " in done.stderr


def test_a_plan_edited_to_devices_that_its_cluster_lacks_is_refused(planned, tmp_path):
    text = planned[0].read_text()
    (tmp_path / "plan.json").write_text(text.replace('"devices": 24\n', '"devices": 20\n'))
    done = simulate(f"--plan={tmp_path / 'plan.json'}")
    assert done.returncode == 2 and "but there are 20 devices" in done.stderr


@pytest.mark.parametrize(
    ("written", "edited", "message"),
    [
        (
            '"cluster": "h100"',
            '"cluster": "tpu9"',
            "the plan was made for the cluster 'tpu9', which configs/clusters.py does not have; give --cluster, one of",
        ),
        (
            '"data": "laion_like"',
            '"profile": "none.json"',
            "the plan was made by the profile 'none.json', which is not here; give --profile, or remove it",
        ),
        ('"gin_file": ["models/mllm_9b.gin"], ', "", "the plan does not name the configuration that it was made for"),
        ('"models/mllm_9b.gin"', '"/dev/stdin"', "so it is read only by flags: --gin_file=/dev/stdin"),
        ('"models/mllm_9b.gin"', '"models/none.gin"', "so it is read only by flags: --gin_file=models/none.gin"),
        ('"data": "laion_like"', '"gin": ["X = @os.system()"]', "'--gin.X=@os.system()'"),
        (
            '"models/mllm_9b.gin"',
            '"quickstart.gin"',
            "made for another model: layers of vision 32 (here 2)",
        ),
    ],
)
def test_what_a_plan_names_and_is_not_here_is_refused_in_one_line(planned, tmp_path, written, edited, message):
    text = planned[0].read_text()
    assert written in text
    (tmp_path / "plan.json").write_text(text.replace(written, edited))
    done = simulate(f"--plan={tmp_path / 'plan.json'}")
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


CONFIGURATION_OF_A_USER = """
from __gin__ import dynamic_registration
from mmjax.training import config
include "tiny.gin"
config.TrainConfig.seed = 3
"""


@pytest.mark.processes
def test_a_configuration_of_the_user_is_not_run_by_the_word_of_a_plan(tmp_path):
    (tmp_path / "mine.gin").write_text(CONFIGURATION_OF_A_USER)
    path, flags = tmp_path / "plan.json", (f"--gin_file={tmp_path / 'mine.gin'}", "--gin.DataConfig.seed=5")
    run_command("mmjax.plan", *flags, "--cluster=cpu", "--devices=4", f"--output={path}")
    refused = simulate(f"--plan={path}")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert refused.stderr.endswith(f"so it is read only by flags: {' '.join(flags)}\n")
    done = run_command("mmjax.simulate", f"--plan={path}", *flags)
    assert done.stderr == "from plan.json: --cluster=cpu --devices=4\n"


@pytest.mark.processes
def test_the_rows_of_a_training_run_win_over_those_of_a_plan(tmp_path):
    path = tmp_path / "plan.json"
    flags = ("--gin_file=tiny.gin", "--batch_rows=24", "--cluster=cpu", "--policy=balanced")
    run_command("mmjax.plan", *flags, f"--output={path}")
    made_for = "note: plan.json was made for rows 24 (here 12)"
    assert made_for in run_command("mmjax.simulate", f"--plan={path}", "--gin_file=tiny.gin").stderr
    assert "note" not in run_command("mmjax.simulate", f"--plan={path}").stderr


@pytest.mark.processes
def test_a_profile_is_taken_for_its_own_hardware_and_plans_keep_to_what_it_measured(tmp_path):
    path, kept = tmp_path / "profile.json", tmp_path / "plan.json"
    path.write_text(synthetic_profile(module_graph(tiny_model()), "cpu", (1, 2)).to_json())
    arguments = ("--gin_file=tiny.gin", "--devices=4", f"--profile={path}", "--json")
    planned = run_command("mmjax.plan", *arguments, "--cluster=cpu", f"--output={kept}")
    assert json.loads(planned.stdout)["policies"][0]["mfu"] > 0
    assert {unit.parallelism.tp for unit in Plan.load(kept).units} <= {1, 2}
    assert {choice for unit in Plan.load(kept).units for choice in unit.recompute} == {"none"}
    refused = simulate(f"--plan={kept}", "--cluster=a800", *arguments)
    assert refused.returncode == 2 and "measured on cpu, and the device is NVIDIA A800" in refused.stderr
    allowed = run_command("mmjax.simulate", f"--plan={kept}", "--cluster=a800", "--allow_other_device", *arguments)
    assert json.loads(allowed.stdout)["mfu"] > 0


def test_a_plan_with_context_parallel_ranks_is_made_and_simulated_by_a_profile_that_has_them(tmp_path):
    """The profile has rings alone, and no two tensor ranks with them: the planner keeps to what it has."""
    path, kept = tmp_path / "profile.json", tmp_path / "plan.json"
    profile = synthetic_profile(module_graph(tiny_model()), "cpu", (1, 2), rings=(2,))
    layers = tuple(layer for layer in profile.layers if layer.ranks.devices <= 2)
    path.write_text(dataclasses.replace(profile, layers=layers).to_json())
    arguments = ("--gin_file=tiny.gin", "--devices=4", f"--profile={path}", "--cluster=cpu")
    planned = call_command("plan", *arguments, "--cp=backbone:2", f"--output={kept}")
    assert planned.returncode == 0, planned.stderr
    backbone = Plan.load(kept).unit_of("backbone")
    assert (backbone.parallelism.cp, backbone.parallelism.tp, backbone.parallelism.context_transfer) == (2, 1, "ring")
    simulated = simulate(f"--plan={kept}", *arguments, "--json")
    assert json.loads(simulated.stdout)["step_seconds"] > 0
    refused = call_command("plan", *arguments, "--cp=backbone:4")
    assert refused.returncode == 2 and "cp 4 (ring); measure it by python -m mmjax.profile --tp=1" in refused.stderr
