"""What XLA schedules for H100s of bundles: either program's matmuls run beside the other's collectives."""

import pytest

from benchmarks.bundles.exposure import CASES, exposed_seconds, exposure_alone, exposure_in_bundle
from benchmarks.h100_schedule.report import GEMMS
from mmjax.training.dry_run.targets import missing_plugin

pytestmark = [pytest.mark.aot, pytest.mark.skipif(bool(missing_plugin()), reason=missing_plugin())]

LARGE = 2**20
"""Bytes of a collective of activations or weights; those of norms are smaller."""

by_gemms = pytest.mark.parametrize("gemms", GEMMS)
by_case = pytest.mark.parametrize("case", CASES, ids=str)


def is_of_encoder(operation: str) -> bool:
    """Whether an operation is of the encoder's program; XLA drops the names of gathers and reductions."""
    return "/jit(vision_stage1_" in operation


@by_gemms
@by_case
def test_a_bundle_computes_and_exchanges_what_its_programs_do_and_exposes_less(case, gemms, record_property):
    alone, bundled = exposure_alone(case, gemms), exposure_in_bundle(case, gemms)
    record_property("temporary_bytes", (bundled.temporary_bytes, *(exposure.temporary_bytes for exposure in alone)))
    assert bundled.flops == sum(exposure.flops for exposure in alone)
    assert bundled.exchanged_bytes == sum(exposure.exchanged_bytes for exposure in alone)
    assert bundled.exposed_bytes < sum(exposure.exposed_bytes for exposure in alone)
    assert exposed_seconds(bundled) < sum(map(exposed_seconds, alone))


@by_gemms
@by_case
def test_matmuls_of_the_encoder_are_under_way_while_the_backbone_exchanges(case, gemms):
    """Most of a gather and a reduction. A forward or backward also has matmuls of its own, and ends with a scatter."""
    large = [
        collective
        for collective, _ in exposure_in_bundle(case, gemms).collectives
        if collective.size >= LARGE and not is_of_encoder(collective.operation)
    ]
    beside_encoder = [
        collective
        for collective in large
        if any(is_of_encoder(matmul.operation) for matmul in collective.concurrent_matmuls)
    ]
    share = sum(collective.size for collective in beside_encoder) / sum(collective.size for collective in large)
    assert share >= (0.6 if case.first[1] in ("gather", "reduce") else 0.3)
