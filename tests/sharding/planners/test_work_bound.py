"""No plan of any policy, and no changed plan, is shorter than the work of all modules on all devices."""

import dataclasses

import pytest
from hypothesis import given, settings

from configs.architectures import ModelConfig
from sharding.planners.policies.auto import all_results
from sharding.planners.work_bound import least_work_seconds
from tests.sharding.planners.problems import BACKBONE, build_problem, problem, recipes


@settings(max_examples=4)
@given(recipes())
def test_no_step_is_shorter(recipe):
    case = build_problem(recipe)
    bound = least_work_seconds(case)
    assert bound > 0
    for result in all_results(case):
        if result.simulated:
            assert result.timeline.step >= bound * (1 - 1e-9), result.policy


def test_one_device_that_computes_one_module_is_near_the_bound():
    case = problem(ModelConfig((), BACKBONE, ()), devices=1)
    best = min((result for result in all_results(case) if result.simulated), key=lambda result: result.timeline.step)
    assert 1 <= best.timeline.step / least_work_seconds(case) < 1.1


def test_twice_the_devices_halve_it():
    case = problem(devices=4)
    assert least_work_seconds(dataclasses.replace(case, devices=8)) == pytest.approx(least_work_seconds(case) / 2)
