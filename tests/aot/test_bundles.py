"""What XLA schedules for H100s of bundles: either program's matmuls run beside the other's collectives."""

import pytest

from benchmarks.bundles.exposure import CASES, exposure_alone, exposure_in_bundle
from benchmarks.h100_schedule.compilation import missing_plugin
from benchmarks.h100_schedule.report import GEMMS

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
    record_property("temporary_bytes", (bundled.temporary_bytes, *(of.temporary_bytes for of in alone)))
    assert bundled.flops == sum(of.flops for of in alone)
    assert bundled.exchanged_bytes == sum(of.exchanged_bytes for of in alone)
    assert bundled.exposed_bytes < sum(of.exposed_bytes for of in alone)
    assert bundled.exposed_seconds < sum(of.exposed_seconds for of in alone)


@by_gemms
@by_case
def test_matmuls_of_the_encoder_are_under_way_while_the_backbone_exchanges(case, gemms):
    """Most of a gather and a reduction. A forward or backward also has matmuls of its own, and ends with a scatter."""
    large = [
        each
        for each in exposure_in_bundle(case, gemms).collectives
        if each.size >= LARGE and not is_of_encoder(each.operation)
    ]
    beside_encoder = [each for each in large if any(is_of_encoder(of.operation) for of in each.concurrent_matmuls)]
    share = sum(each.size for each in beside_encoder) / sum(each.size for each in large)
    assert share >= (0.6 if case.first[1] in ("gather", "reduce") else 0.3)
