"""What XLA schedules for H100s: every step of a ring but the first is under way while a matmul runs."""

import functools

import pytest

from benchmarks.h100_schedule.programs import LLAMA3_70B, TOKENS, ProgramCase
from benchmarks.h100_schedule.report import GEMMS, ScheduleReport, make_report
from mmjax.training.dry_run.targets import missing_plugin

pytestmark = [pytest.mark.aot, pytest.mark.skipif(bool(missing_plugin()), reason=missing_plugin())]

PROGRAMS = [(part, ranks, backward) for part in ("matmuls", "layer") for ranks in (4, 8) for backward in (False, True)]
programs = pytest.mark.parametrize(("part", "ranks", "backward"), PROGRAMS)
by_gemms = pytest.mark.parametrize("gemms", GEMMS)

report_of_case = functools.cache(make_report)


def ring(part: str, ranks: int, backward: bool, gemms: str) -> ScheduleReport:
    return report_of_case(ProgramCase(part, ranks, backward, "ring"), gemms)


@by_gemms
@programs
def test_every_permute_but_the_first_is_under_way_while_a_matmul_runs(part, ranks, backward, gemms, record_property):
    compiled = ring(part, ranks, backward, gemms)
    record_property("temporary_bytes", compiled.temporary_bytes)
    assert [permute.name for permute in compiled.permutes[1:] if not permute.hidden] == []


@by_gemms
@programs
def test_the_permutes_are_those_of_the_rings(part, ranks, backward, gemms):
    """Going back, the gathered x travels again, and a sum against it; a scattered one's gradient alone travels."""
    pairs = {"matmuls": 1, "layer": 2}[part]
    forward = pairs * 2 * (ranks - 1)
    again = forward - (ranks - 1)  # nothing needs the last sum again
    expected = again + pairs * 3 * (ranks - 1) if backward else forward
    assert len(ring(part, ranks, backward, gemms).permutes) == expected


@programs
def test_only_permutes_carry_activations(part, ranks, backward):
    others = [
        collective
        for collective in ring(part, ranks, backward, "XLA").collectives
        if collective.kind != "collective-permute"
    ]
    activations = TOKENS * LLAMA3_70B.width * 2 // ranks
    assert all(collective.size < activations / 100 for collective in others)


@pytest.mark.parametrize("ranks", [4, 8])
def test_the_ring_computes_what_the_plain_form_does(ranks):
    plain = report_of_case(ProgramCase("matmuls", ranks, True, "sequence_parallel"), "XLA")
    assert sum(matmul.flops for matmul in ring("matmuls", ranks, True, "XLA").matmuls) == sum(
        matmul.flops for matmul in plain.matmuls
    )
