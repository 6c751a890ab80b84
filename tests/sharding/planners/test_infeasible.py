"""The smallest cluster that an error names holds the model, and one with a device less does not."""

import dataclasses
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from configs.architectures import ModelConfig
from sharding.planners.policies.auto import run_policy
from tests.sharding.planners.problems import AUDIO, BACKBONE, GENERATOR, VISION, build_problem, problem, recipes

MEMORY = st.floats(6.3, 7.4)
"""Logarithm of the bytes of a device."""


@pytest.mark.parametrize("policy", ["balanced", "disaggregated"])
@given(recipes(), MEMORY)
@settings(max_examples=10, deadline=None)
def test_the_smallest_cluster_holds_the_model_and_one_device_less_does_not(policy, recipe, memory):
    case = dataclasses.replace(build_problem(recipe | {"memory": 10**memory}), devices=1)
    reason = run_policy(case, policy).reason
    named = re.search(r"smallest cluster of toy that would do (?:for units of their own )?has ([\d,]+) device", reason)
    assume(named is not None)
    assert named is not None
    count = int(named[1].replace(",", ""))
    assert run_policy(dataclasses.replace(case, devices=count), policy).simulated
    assert not run_policy(dataclasses.replace(case, devices=count - 1), policy).simulated


def test_the_smallest_cluster_does_not_depend_on_the_cluster_that_was_too_small():
    vision = dataclasses.replace(VISION, depth=3)
    model, ranks = ModelConfig((vision,), BACKBONE, ()), (("backbone", 1, 2),)
    case = problem(model, rows=2, memory=10**6.5625, ranks=ranks, experts=4)
    for devices in (1, 10, 18):
        reason = run_policy(dataclasses.replace(case, devices=devices), "disaggregated").reason
        assert "would do for units of their own has 19 devices (vision 3, backbone 16)" in reason


def test_a_chain_that_does_not_fit_names_what_it_lacks():
    reason = run_policy(problem(ModelConfig((VISION,), BACKBONE, ()), devices=3, memory=6e6), "balanced").reason
    assert re.fullmatch(
        r"vision > backbone on 3 devices needs 8\.\d+ MB on each however it is cut and recomputed, 2\.\d+ MB more than "
        r"toy has\. The smallest cluster of toy that would do has 6 devices \(dp 1, tp 1, pp 6\)",
        reason,
    )
    one = run_policy(problem(ModelConfig((VISION,), BACKBONE, ()), devices=1, memory=1e5), "balanced").reason
    assert re.search("on 1 device needs .* No number of these devices will do; use larger ones", one)


@pytest.mark.parametrize(
    ("model", "beside"),
    [
        (ModelConfig((VISION, AUDIO), BACKBONE, ()), "vision and audio are side by side"),
        (ModelConfig((VISION, AUDIO), BACKBONE, (GENERATOR,)), "vision and audio are side by side"),
    ],
)
def test_modules_that_are_no_chain_are_named(model, beside):
    assert f"are no chain: {beside}, so that one unit cannot hold all" in run_policy(problem(model), "balanced").reason
