"""A layout with moments in bfloat16 and state on the hosts agrees with one device; other roundings are found."""

import dataclasses

import pytest

from mmjax.training.engine import build
from mmjax.training.engine.optimizers.optimizer import make_stage_update
from mmjax.training.verification.comparison import verify_layouts
from mmjax.training.verification.layouts.layout_kinds import NamedLayout
from sharding.plans.plan import Plan
from tests.unit_plans import module_unit
from tests.verified_run import MODEL, run_small_reference

pytestmark = pytest.mark.layouts

PLAN = Plan((module_unit("vision", (0,), layers=(2,)), module_unit("backbone", (0, 1), layers=(3,), dp=2)), 3)


def test_moments_are_rounded_as_on_one_device(monkeypatch):
    layout = NamedLayout("rounded", PLAN, moment_dtype="bfloat16", state_memory="host")
    reference = run_small_reference()
    (right,) = verify_layouts(MODEL, [layout], reference)
    assert right.ok, right

    def of_another_piece(optimizer, pieces, shardings):
        return make_stage_update(optimizer, dict.fromkeys(pieces, "another/piece"), shardings)

    monkeypatch.setattr(build, "make_stage_update", of_another_piece)
    (wrong,) = verify_layouts(MODEL, [dataclasses.replace(layout, state_memory=None)], reference)
    update = wrong.modules["backbone"].update
    assert update is not None and update.error > 1e-3 and not wrong.ok
