"""Which stages compute their gradients of weights later, and which plans have none for that."""

import dataclasses

import pytest

from configs.architectures import BackboneConfig, ModelConfig
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.named.split_stages import split_stages
from sharding.specs.modules import module_graph
from tests.tiny_model import VISION

GRAPH = module_graph(ModelConfig((VISION,), BackboneConfig(depth=4), ()))
UNITS = (
    UnitPlan("vision", ("vision",), (0,), layers=(2,)),
    UnitPlan("backbone", ("backbone",), (1, 2), layers=(2, 2), recompute=("none",) * 2),
)
PLAN = Plan(UNITS, 4, "zb-h1")
ENCODER, FIRST, LAST = ("vision", 0), ("backbone", 0), ("backbone", 1)


def split(plan, *trained):
    return split_stages(ResolvedPlan(plan, GRAPH), frozenset(trained))


def test_those_that_train_and_send_a_gradient_back():
    assert split(PLAN, ENCODER, FIRST, LAST) == {FIRST, LAST}
    assert split(dataclasses.replace(PLAN, schedule="1f1b"), ENCODER, FIRST, LAST) == set()


def test_a_frozen_encoder_before_them_has_no_backward():
    assert split(PLAN, FIRST, LAST) == {LAST}


@pytest.mark.parametrize(
    ("trained", "frozen"),
    [
        ((ENCODER,), r"2 of the 2 stages of unit backbone \(0, 1\)"),
        ((ENCODER, FIRST), r"1 of the 2 stages of unit backbone \(1\)"),
    ],
)
def test_stages_of_a_pipeline_that_send_gradients_back_and_train_nothing_are_refused(trained, frozen):
    with pytest.raises(PlanError, match=f"schedule 'zb-h1' splits backwards, but {frozen} train nothing"):
        split(PLAN, *trained)
