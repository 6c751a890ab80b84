import pytest

from benchmarks.h100_schedule.programs import ProgramCase
from benchmarks.h100_schedule.report import (
    H100,
    ScheduleReport,
    bytes_sent,
    format_collectives,
    format_overview,
    seconds_at_peak,
)
from mmjax.training.dry_run.overlap import Collective, Matmul, MatmulProduct

MATMUL = Matmul("y", (MatmulProduct((2048, 7168), 8192),), "jit(f)/dot", "main")


def collective(kind, *matmuls, size=2**25):
    return Collective(
        name=f"{kind}-start",
        kind=kind,
        operation="",
        computation="main",
        size=size,
        smaller=size // 4,
        synchronous=False,
        concurrent_matmuls=matmuls,
    )


def reported(*collectives):
    return ScheduleReport(ProgramCase("layer", 4, True, "ring"), "XLA", 3 * 2**20, collectives, (MATMUL,))


@pytest.mark.parametrize(
    ("kind", "share"),
    [("collective-permute", 1.0), ("all-gather", 0.75), ("reduce-scatter", 0.75), ("all-reduce", 1.5)],
)
def test_what_a_device_sends(kind, share):
    assert bytes_sent(collective(kind, size=1000), 4) == share * 1000


def test_equal_steps_stand_in_one_line_and_what_is_exposed_says_so():
    permute = collective("collective-permute", MATMUL)
    lines = format_collectives(reported(permute, permute, collective("all-reduce", size=2**16))).splitlines()
    moving = round(2**25 / H100.intra_node.bandwidth * 1e6 + 3)
    computing = round(seconds_at_peak(2 * 2048 * 7168 * 8192) * 1e6)
    assert lines[2] == f"| 2 | collective-permute | 32 | 1 x [2048, 7168] over 8192 | {moving} | {computing} |"
    assert lines[3].startswith("| 1 | all-reduce | 0.06 | **exposed** |")


def test_the_overview_has_a_line_a_program():
    hidden = reported(collective("collective-permute", MATMUL))
    open_ = reported(collective("collective-permute", MATMUL), collective("all-reduce"))
    first, second = format_overview([hidden, open_]).splitlines()[2:]
    assert first == "| layer, tp 4, backward | ring | XLA | 1 collective-permute | none | 0 | 0.24 | 3 |"
    assert "| 1 collective-permute, 1 all-reduce | 1 all-reduce | 48 |" in second


def test_the_figures_as_json_are_whole():
    figures = reported(collective("collective-permute", MATMUL)).as_json()
    assert figures["matmul_flops"] == MATMUL.flops
    assert (figures["collectives"], figures["gemms"], figures["temporary_bytes"]) == ("ring", "XLA", 3 * 2**20)
    assert [(issued["hidden"], issued["flops"]) for issued in figures["issued"]] == [(True, MATMUL.flops)]
