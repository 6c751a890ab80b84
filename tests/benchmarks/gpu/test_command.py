"""The command as people run it and as it will run on a GPU, at tiny sizes on the CPU."""

import dataclasses
import json
import time

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import parts as gpu_parts
from benchmarks.gpu.mmjax_step import mfu_row
from tests.commands import run_command

NAMES = {
    "correctness": (
        "correct: packed_attention, blocked, float32",
        "correct: collective_matmul, ring, one rank, bfloat16",
        "correct: grouped_matmul, tiled, float32",
        "correct: loss over chunks of the vocabulary, bfloat16",
    ),
    "mmjax": ("mmjax: step, tokens/s", "mmjax: MFU of the step", "mmjax: MFU of the backbone's share"),
    "pytorch": ("PyTorch padded, SDPA: step, tokens/s", "mmjax over PyTorch packed", "mmjax over PyTorch padded"),
    "attention": ("attention, mixed: packed_attention, ms", "attention, mixed: packed_attention, blocked, ms"),
    "experts": ("experts, few: one matrix, TFLOP/s", "experts, few: tiled, TFLOP/s"),
    "loss": ("loss, 64 x 96, in chunks, ms", "loss, 64 x 96, whole logits, ms"),
    "efficiency": (
        "matmul [64, 32] @ [32, 64], TFLOP/s",
        "attention of 32-wide heads, forward and backward, TFLOP/s",
    ),
    "matmuls": ("matmul, one: jnp.matmul (cuBLAS), TFLOP/s", "matmul, one: mosaic all-gather, TFLOP/s"),
}


@pytest.fixture(scope="module")
def dry_run_result():
    """What the whole command gave."""
    return json.loads(run_command("benchmarks.gpu", "--dry_run", "--json").stdout)


@pytest.mark.processes
@pytest.mark.parametrize("part", NAMES)
def test_the_dry_run_fills_the_table(part, dry_run_result):
    rows = {row["name"]: row for row in dry_run_result["rows"]}
    if absent := gpu_parts.missing_packages(gpu_parts.PARTS[part]):
        assert f"needs {absent[0]}" in rows[part]["note"]
        return
    for name in NAMES[part]:
        assert rows[name]["value"] is not None or rows[name]["note"]


@pytest.mark.processes
def test_the_dry_run_checks_correctness_and_not_speed(dry_run_result):
    judged = [row for row in dry_run_result["rows"] if row["met"] is not None]
    assert judged and all(row["met"] and row["name"].startswith(("correct", "loss")) for row in judged)
    assert dry_run_result["dry_run"] and dry_run_result["device"] == "cpu" and dry_run_result["jax"]


@pytest.mark.processes
def test_no_mfu_where_the_peak_is_not_known(dry_run_result):
    shares = [row for row in dry_run_result["rows"] if "MFU" in row["name"]]
    assert shares and all(row["value"] is None and "peak of cpu is not known" in row["note"] for row in shares)


@pytest.mark.parity
def test_both_frameworks_compute_the_same_loss(dry_run_result):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    apart = [row["value"] for row in dry_run_result["rows"] if row["name"].startswith("loss of the first step")]
    assert len(apart) == 2 and max(apart) < 1e-5


@pytest.mark.processes
def test_without_a_hopper_gpu_it_is_refused():
    assert "--dry_run" in run_command("benchmarks.gpu", code=2).stderr
    assert "--size=medium is the size of a dry run" in run_command("benchmarks.gpu", "--size=medium", code=2).stderr
    assert "'speed' is not one of" in run_command("benchmarks.gpu", "--only=speed", code=2).stderr


@pytest.mark.processes
def test_what_the_time_does_not_suffice_for_says_so(tmp_path, monkeypatch):
    (row,) = gpu.run_part("matmuls", tmp_path, time.monotonic() + 1, "tiny")
    assert row["note"].startswith("cut for time")
    hasty = dataclasses.replace(gpu_parts.PARTS["matmuls"], min_seconds=0.0)
    monkeypatch.setitem(gpu_parts.PARTS, "matmuls", hasty)
    *_, row = gpu.run_part("matmuls", tmp_path, time.monotonic() + 0.3, "tiny")
    assert row["note"].startswith("cut for time after")


@pytest.mark.processes
def test_a_part_that_fails_says_why_and_fails_the_command(tmp_path):
    row = gpu.run_part("mmjax", tmp_path, time.monotonic() + 100, "tiny")[-1]
    assert row["failed"] and "batches.json" in row["note"]


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    needy = dataclasses.replace(gpu_parts.PARTS["pytorch"], required_packages=("no_such_package",))
    monkeypatch.setitem(gpu_parts.PARTS, "pytorch", needy)
    (row,) = gpu.run_part("pytorch", tmp_path, time.monotonic() + 100, "tiny")
    assert "needs no_such_package" in row["note"]


def test_goals_are_judged_on_the_side_that_they_are_on(tmp_path):
    task = gpu_parts.PartRun(None, tmp_path, 0.0, check_speed=True)
    assert task.row("speed", 1.2, 1.15)["met"] and not task.row("speed", 1.1, 1.15)["met"]
    assert task.row("error", 1e-6, 1e-5, at_most=True)["met"] and not task.row("error", 1e-4, 1e-5, at_most=True)["met"]
    assert task.row("speed", None, 1.15)["met"] is None


def test_mfu_is_of_the_peak_of_a_known_device(tmp_path):
    task = gpu_parts.PartRun(None, tmp_path, 0.0, check_speed=True)
    flops, seconds = [{"vision": 0.1e15, "backbone": 0.4e15}, {"vision": 0.0, "backbone": 1e15}], [1.0, 2.0, 1.0]
    row = mfu_row(task, "MFU", flops, seconds, "NVIDIA H200", 0.5)
    assert row["value"] == pytest.approx(0.5e15 / 989e12) and row["met"]
    for kind in ("NVIDIA H100 PCIe", "cpu", "NVIDIA GeForce RTX 4090"):
        row = mfu_row(task, "MFU", flops, seconds, kind, 0.5)
        assert (row["value"], row["met"]) == (None, None) and kind in row["note"]
