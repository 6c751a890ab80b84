"""Layouts with FP8 operands agree with an FP8 reference; a layout that rounds one layer less is found."""

import pytest

from mmjax.training.verification import comparison
from mmjax.training.verification.configured_run import verify_run
from mmjax.training.verification.layouts.layout_kinds import NamedLayout
from mmjax.training.verification.layouts.precisions import model_in, precisions_of
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.small_vqa import SmallVQA
from tests.verified_run import DATA, MODEL, SETTINGS

pytestmark = pytest.mark.layouts

IN_FP8 = MODEL.with_fp8(("attention", "mlp"))
PLAN = Plan(
    (
        UnitPlan("vision", ("vision",), (0, 1), layers=(2,), parallelism=Parallelism(tp=2)),
        UnitPlan(
            "backbone", ("backbone",), (2, 3, 4, 5), layers=(1, 2), parallelism=Parallelism(tp=2, collectives="ring")
        ),
    ),
    microbatches=3,
)


def reports_in_fp8():
    (layout,) = NamedLayout("plan", PLAN).in_precisions(["fp8"])
    (report,) = verify_run(IN_FP8, DATA, SmallVQA("train"), [layout], SETTINGS, steps=1)
    return report


def test_a_model_with_fp8_is_compared_in_float32_without_it_and_with_it():
    assert precisions_of(MODEL) == ("float32",)
    assert precisions_of(IN_FP8) == ("float32", "fp8")
    assert not model_in(IN_FP8, "float32").uses_fp8
    names = [layout.name for layout in NamedLayout("plan", PLAN).in_precisions(precisions_of(IN_FP8))]
    assert names == ["plan, float32", "plan, fp8"]


def test_tensor_ranks_a_ring_and_stages_agree_with_one_device():
    report = reports_in_fp8()
    assert report.ok, report


def test_a_layout_without_fp8_in_the_feed_forward_layers_is_found(monkeypatch):
    monkeypatch.setattr(comparison, "model_in", lambda model, precision: model.with_fp8(("attention",)))
    report = reports_in_fp8()
    assert not report.modules["backbone"].ok
