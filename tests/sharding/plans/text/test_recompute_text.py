"""Recomputation of a stage's layers as text, there and back."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from sharding.plans.plan_error import PlanError
from sharding.plans.text.recompute_text import layer_policies, read_recompute, recompute_text
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import RECOMPUTE_POLICIES

POLICIES = st.lists(st.sampled_from(RECOMPUTE_POLICIES), min_size=1, max_size=40).map(tuple)


@given(POLICIES)
def test_policies_survive_the_text(policies):
    assert layer_policies(recompute_text(policies), len(policies)) == policies


def test_text_is_as_short_as_it_can_be():
    assert recompute_text(("full",) * 4) == "full"
    assert recompute_text(("full", "full", "none", "full")) == "2 full, 1 none, 1 full"
    assert layer_policies("full", 3) == ("full",) * 3
    assert layer_policies("1 selective, 2 none", 3) == ("selective", "none", "none")


@pytest.mark.parametrize(
    "text", ["", "some", "3", "full 3", "0 full", "-1 full", "3 full,5 none", "3 full, ", "03 full"]
)
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"choose from none, selective, offload, full.*'3 full, 5 none'"):
        layer_policies(text, 3)


@pytest.mark.parametrize("layers", [7, 9])
def test_counts_must_add_up_to_the_layers(layers):
    with pytest.raises(ValueError, match=f"'3 full, 5 none' is for 8 layers, but the stage owns {layers}"):
        layer_policies("3 full, 5 none", layers)


def test_a_plan_of_very_many_layers_is_read_without_a_policy_for_each():
    layers = 10**15
    assert read_recompute("full", layers) == [("full", layers)]
    with pytest.raises(PlanError, match=r"unit u: layers has 1e\+15; it may be at most 65536"):
        UnitPlan("u", ("net",), (0,), layers=(layers,), recompute=("none",))
