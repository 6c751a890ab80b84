"""`python -m mmjax.describe_data` in a process of its own, on easy-VQA: without jax; what it suggests can be pasted."""

import json

import pytest

from tests.commands import run_command, run_without_jax

pytestmark = pytest.mark.processes

COMMAND = "mmjax.describe_data"


def test_suggestions_are_pasted_into_a_training_configuration(tmp_path):
    page = tmp_path / "page.html"
    ran = run_without_jax(COMMAND, "--gin_file=tiny.gin", "--samples=140", "--json", f"--page={page}")
    report = json.loads(ran.stdout)
    assert {kind["name"]: kind["drawn"] for kind in report["kinds"]} == {"vqa": 40, "description": 80, "text": 20}
    assert report["refused"] == [] and abs(sum(report["token_shares"].values()) - 1) < 1e-9
    assert "<title>" in page.read_text() and "Data of tiny.gin" in page.read_text()

    lines = "\n".join(report["gin"])
    pasted = tmp_path / "pasted.gin"
    header = "from __gin__ import dynamic_registration\nfrom data import data_config\n"
    pasted.write_text(f'{header}include "tiny.gin"\n{lines}\n')
    shown = run_command(COMMAND, f"--gin_file={pasted}", "--samples=140").stdout
    limits = ", ".join(f"{size} {name}" for name, size in report["row_suggestions"][0]["capacity"].items())
    assert f"As configured: 12 rows a step, a row of at most {limits}" in shown
    samples = report["row_suggestions"][0]["capacity"]["samples"]
    assert f"samples = {samples}\n  grouping = '" in shown


def test_configurations_without_a_dataset_are_refused():
    assert (
        "a training run needs TrainConfig.dataset"
        in run_command(COMMAND, "--gin_file=models/mllm_9b.gin", code=2).stderr
    )
