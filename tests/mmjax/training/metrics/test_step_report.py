"""The files of a run are read back, after a resume, a kill and a NaN too."""

import math
import pathlib
import struct

import pytest

from mmjax.training.metrics.step_report import (
    StepReport,
    make_step_report,
    open_metrics_writer,
    padding_fractions,
    read_metrics,
    sum_counts,
)
from mmjax.training.metrics.step_timer import StepTimes

TIMES = StepTimes(steps=4, wall=0.5, data=0.1, dispatch=0.15, device=0.2)


def tensorboard_records(workdir: pathlib.Path) -> bytes:
    """The payloads of every TensorBoard file: TFRecords of length, checksum, payload, checksum."""
    payloads = b""
    for path in sorted((workdir / "tensorboard").iterdir()):
        content, position = path.read_bytes(), 0
        while position < len(content):
            (length,) = struct.unpack_from("<Q", content, position)
            payloads += content[position + 12 : position + 12 + length]
            position += length + 16
    return payloads


def test_numbers_are_read_back_from_both_files(tmp_path):
    writer = open_metrics_writer(str(tmp_path / "run"))
    writer.write(1, {"loss/language": 2.5, "mfu": 0.25})
    writer.write(2, {"loss/language": 1.5})
    assert read_metrics(str(tmp_path / "run")) == [
        {"step": 1, "loss/language": 2.5, "mfu": 0.25},
        {"step": 2, "loss/language": 1.5},
    ], "lines are there before the run ends"
    writer.close()
    records = tensorboard_records(tmp_path / "run")
    assert b"loss/language" in records and b"mfu" in records
    assert struct.pack("<f", 2.5) in records and struct.pack("<f", 0.25) in records


def test_a_resumed_run_replaces_the_steps_after_its_checkpoint(tmp_path):
    writer = open_metrics_writer(str(tmp_path))
    for step in range(1, 6):
        writer.write(step, {"loss": float(step)})
    writer.close()
    with (tmp_path / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 6, "lo')  # killed while writing
    writer = open_metrics_writer(str(tmp_path), resumed_step=3)
    writer.write(4, {"loss": 40.0})
    writer.close()
    assert [(line["step"], line["loss"]) for line in read_metrics(str(tmp_path))] == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
        (4, 40.0),
    ]


def test_what_is_not_finite_is_null_in_json(tmp_path):
    writer = open_metrics_writer(str(tmp_path))
    writer.write(1, {"loss": math.nan, "norm": math.inf, "rate": 0.5})
    writer.close()
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    assert read_metrics(str(tmp_path)) == [{"step": 1, "loss": None, "norm": None, "rate": 0.5}]


def test_other_processes_write_nothing(tmp_path):
    writer = open_metrics_writer(str(tmp_path / "run"), first_process=False)
    writer.write(1, {"loss": 1.0})
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_counts_add_up_over_batches():
    counts = sum_counts([{"vision": (3, 8), "backbone": (10, 16)}, {"vision": (0, 8), "backbone": (14, 16)}])
    assert counts == {"vision": (3, 16), "backbone": (24, 32)}
    assert padding_fractions({**counts, "generator": (0, 0)}) == {"vision": 13 / 16, "backbone": 0.25, "generator": 0.0}


def test_a_report_counts_real_tokens_and_real_work():
    counts = {"vision": (8, 16), "backbone": (300, 400)}
    flops = {"vision": 312e12, "backbone": 4 * 312e12}
    kinds = ["NVIDIA A100-SXM4-80GB"] * 16
    report = make_step_report(7, {"language": 1.0}, TIMES, counts, flops, kinds, {"norm": 2.0})
    assert report.tokens_per_second == 300 / (4 * 0.5)
    assert report.padding == {"vision": 0.5, "backbone": 0.25}
    assert report.mfu == pytest.approx((0.5 + 3.0) / (0.5 * 16))
    assert report.scalars() == {
        "loss/language": 1.0,
        "seconds/wall": 0.5,
        "seconds/data": 0.1,
        "seconds/dispatch": 0.15,
        "seconds/device": 0.2,
        "seconds/other": pytest.approx(0.05),
        "tokens_per_second": 150.0,
        "padding/vision": 0.5,
        "padding/backbone": 0.25,
        "mfu": report.mfu,
        "norm": 2.0,
    }


def test_an_unknown_peak_reports_no_utilization():
    report = make_step_report(7, {}, TIMES, {"backbone": (1, 1)}, {"backbone": 1e12}, ["cpu"])
    assert isinstance(report, StepReport) and report.mfu is None and "mfu" not in report.scalars()
