"""Tensor-parallel sizes of the modules of one unit."""

import re

import pytest

from sharding.plans.parallelism import Parallelism
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan
from tests.unit_plans import changed_unit

CHAIN = UnitPlan(
    "chain",
    ("eyes", "mind"),
    tuple(range(20)),
    layers=(4, 4),
    recompute=("none",) * 2,
    parallelism=Parallelism(dp=5, tp=2, module_tp=(5, 2)),
)


def test_modules_of_a_stage_have_tensor_ranks_of_their_own():
    assert (CHAIN.tensor_ranks_of("eyes"), CHAIN.replicas_of("eyes")) == (5, 2)
    assert (CHAIN.tensor_ranks_of("mind"), CHAIN.replicas_of("mind")) == (2, 5)
    alike = CHAIN.with_parallelism(module_tp=())
    assert (alike.tensor_ranks_of("eyes"), alike.replicas_of("eyes")) == (2, 5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"module_tp": (5, 2, 1)}, "unit chain: module_tp [5, 2, 1] has 3 entries for 2 modules"),
        ({"module_tp": (0, 2)}, "module_tp [0, 2] must be at least 1"),
        ({"module_tp": (5, 1)}, "module_tp [5, 1] does not contain tp 2"),
        ({"module_tp": (2, 2)}, "module_tp [2, 2] is tp 2 for all; leave module_tp out"),
        ({"module_tp": (3, 2)}, "need a multiple of 6 devices a stage, but it has dp 5 x tp 2 = 10"),
        ({"ep": 5}, "module_tp [5, 2] and ep 5 need a multiple of 50 devices a stage"),
        ({"devices": tuple(range(40)), "cp": 2}, "only modules of equal tp can share a stage with cp above 1"),
    ],
)
def test_tensor_ranks_that_modules_cannot_have_are_refused(fields, message):
    with pytest.raises(PlanError, match=re.escape(message)):
        changed_unit(CHAIN, **fields)
