"""Reports of a window of steps: throughput and MFU count real tokens, not padding."""

import pytest

from mmjax.training.metrics.step_report import StepReport, make_step_report, padding_fractions, sum_counts
from mmjax.training.metrics.step_timer import StepTimes

TIMES = StepTimes(steps=4, wall=0.5, data=0.1, dispatch=0.15, device=0.2)


def test_counts_add_up_over_batches():
    counts = sum_counts([{"vision": (3, 8), "backbone": (10, 16)}, {"vision": (0, 8), "backbone": (14, 16)}])
    assert counts == {"vision": (3, 16), "backbone": (24, 32)}
    assert padding_fractions({**counts, "generator": (0, 0)}) == {"vision": 13 / 16, "backbone": 0.25, "generator": 0.0}


def test_a_report_counts_real_tokens_and_their_flops():
    counts = {"vision": (8, 16), "backbone": (300, 400)}
    flops = {"vision": 312e12 / 4, "backbone": 4 * 312e12 / 100}
    kinds = ["NVIDIA A100-SXM4-80GB"] * 16
    report = make_step_report(7, {"language": 1.0}, TIMES, counts, 4, flops, kinds, "backbone", {"norm": 2.0})
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
    report = make_step_report(7, {}, TIMES, {"backbone": (1, 1)}, 4, {"backbone": 1e12}, ["cpu"], "backbone")
    assert isinstance(report, StepReport) and report.mfu is None and "mfu" not in report.scalars()


def test_throughput_counts_the_steps_of_the_window_and_not_those_that_were_timed():
    report = make_step_report(7, {}, TIMES, {"backbone": (600, 800)}, 8, {}, [], "backbone")
    assert report.tokens_per_second == 600 / (8 * 0.5), "four of the eight steps were trained before the run resumed"


def test_throughput_is_that_of_the_backbone_whatever_its_name():
    counts = {"vision": (8, 16), "llama": (300, 400)}
    assert make_step_report(7, {}, TIMES, counts, 4, {}, [], "llama").tokens_per_second == 300 / (4 * 0.5)
