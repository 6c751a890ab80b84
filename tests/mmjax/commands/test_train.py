"""`python -m mmjax.train` as a user starts it: real processes, real files."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.sharding.html.documents import parsed_page, tables, words
from tests.xla_flags import xla_flags

pytestmark = pytest.mark.processes

GIN = """
from __gin__ import dynamic_registration
from configs import architectures
from data import data_config
from mmjax.training import config
from tests import small_vqa
include "tiny.gin"
config.TrainConfig:
  dataset = @small_vqa.SmallVQA
  model = @architectures.ModelConfig()
  data = @data_config.DataConfig()
  plan = "plans/quickstart.json"
  require_plan = False
  steps = 4
  checkpoint_interval = 2
  log_interval = 1
"""


# Runs a module with a list of the files of a workdir that were written or removed, in that order.
LISTING_FILES = """
import os, pathlib, runpy, sys
workdir, module, *sys.argv[1:] = sys.argv[1:]
def note(event, arguments):
    changes = event == "os.remove" or event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if changes and isinstance(arguments[0], str) and arguments[0].startswith(workdir):
        touched.append(pathlib.Path(arguments[0]).name)
touched = []
sys.addaudithook(note)
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
finally:
    pathlib.Path(workdir + ".files").write_text(" ".join(touched))
"""


def train(workdir, *arguments: str, devices: int = 1) -> subprocess.CompletedProcess:
    gin = workdir.parent / "run.gin"
    gin.write_text(GIN)
    python = [sys.executable, "-c", LISTING_FILES, str(workdir)]
    command = [*python, "mmjax.train", f"--gin_file={gin}", f"--workdir={workdir}", *arguments]
    flags = xla_flags(devices)
    return subprocess.run(
        command, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("train") / "run"
    return workdir, train(workdir)


def test_it_prints_devices_and_plan_then_progress_then_files(trained):
    workdir, done = trained
    assert done.returncode == 0, done.stderr
    order = ["modules", "needs 8 devices and there are 1", "step 4/4", "Held-out accuracy", "Written to"]
    places = [done.stdout.index(words) for words in order]
    assert places == sorted(places), done.stdout
    for name in ("summary.json", "metrics.jsonl", "tensorboard", "checkpoints", "operative.gin", "plan.json"):
        assert (workdir / name).exists(), name


def test_the_lock_is_given_back_when_everything_is_written(trained):
    workdir, _ = trained
    files = (workdir.parent / "run.files").read_text().split()
    lock = len(files) - 1 - files[::-1].index("run.lock")
    assert not (workdir / "run.lock").exists()
    assert {"summary.json.tmp", "report.html.tmp", "metrics.jsonl"} <= set(files[:lock]) and not files[lock + 1 :]


def test_the_summary_holds_what_was_measured(trained):
    workdir, _ = trained
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["steps"] == 4 and summary["wall_seconds"] > 0 and summary["tokens_per_second"] > 0
    assert 0 <= summary["accuracy"] <= 1 and summary["questions"] > 300
    assert set(summary["padding"]) == {"vision", "backbone", "generator"}
    assert [unit["devices"] for unit in summary["plan"]["units"]] == ["0", "0", "0"]
    assert {"python", "jax", "flax", "mmjax"} <= set(summary["versions"])


def test_the_page_of_the_run_draws_each_step_once_and_shows_samples(trained):
    workdir, _ = trained
    root = parsed_page((workdir / "report.html").read_text())
    for figure in root.iter("figure"):
        if words(figure).startswith("Loss of"):
            drawn = [point.find("title").text for point in figure.iter() if point.get("class") == "point"]
            steps = [re.fullmatch(r"(.*), step (\d+): .*", hint).groups() for hint in drawn]
            assert [step for name, step in steps if name == "training"] == ["1", "2", "3", "4"]
            assert [step for name, step in steps if name != "training"] in ([], ["4"]), "evaluated at the end"
    assert "Finished after 4 steps." in words(root) and "Simulated with the analytic costs of the cluster cpu" in words(
        root
    )
    answers = [rows for rows in tables(root) if rows[0][:3] == ["", "question", "in the data set"]]
    assert [len(rows) for rows in answers] == [5] and answers[0][0][3:] == ["step 4"]
    sources = [node.get("src") for node in root.iter("img")]
    assert len(sources) == 4 + 2 * 2, "an image for each question, two for each description"
    start = json.loads((workdir / "starts.jsonl").read_text())
    assert start["step"] == 0 and start["steps"] == 4 and start["devices"] == "1 x cpu" and "jax" in start["versions"]


def test_a_second_run_in_the_workdir_is_refused_and_a_finished_one_resumes(trained):
    workdir, _ = trained
    again = train(workdir)
    assert again.returncode == 2 and "--resume" in again.stderr and "Traceback" not in again.stderr
    resumed = train(workdir, "--resume")
    assert resumed.returncode == 0, resumed.stderr


def test_a_resumed_run_says_from_where_and_counts_its_own_steps(trained, tmp_path):
    workdir = shutil.copytree(trained[0], tmp_path / "run")
    resumed = train(workdir, "--resume", "--gin.TrainConfig.steps=5")
    assert resumed.returncode == 0, resumed.stderr
    assert f"continuing {workdir} from step 4" in resumed.stdout.splitlines()
    assert re.search(r"questions, 5 steps, the last 1 in \d+ s\n", resumed.stdout), resumed.stdout
    assert "1 x cpu, 1 process\n" in trained[1].stdout and "continuing" not in trained[1].stdout
    assert re.search(r"questions, 4 steps in \d+ s\n", trained[1].stdout), trained[1].stdout


def test_resume_without_a_workdir_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "mmjax.train", "--resume"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2 and "--workdir" in done.stderr
