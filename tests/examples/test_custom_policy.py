"""The example of a planning policy: compared with the built-in ones by the command."""

import pytest

from sharding.planners.policies import auto
from sharding.planners.policies.auto import LOCAL_SEARCH, run_policy
from tests.examples.loading import load_example, run_command
from tests.sharding.planners.problems import problem


@pytest.mark.processes
def test_the_policy_of_the_gin_file_is_compared_with_the_others():
    printed = run_command(
        "mmjax.plan", "--gin_file=custom_policy.gin", "--devices=8", "--batch_rows=64", "--data=internvl_like"
    )
    steps = {entry["policy"]: entry.get("step_seconds") for entry in printed["policies"]}
    assert [*steps] == [*auto.BUILT_IN_POLICIES, "replicated", LOCAL_SEARCH]
    assert printed["choice"] == min(steps, key=lambda policy: steps[policy] or float("inf"))
    (plan,) = (entry["plan"] for entry in printed["policies"] if entry["policy"] == "replicated")
    assert [(unit["parallelism"]["dp"], unit["devices"]) for unit in plan["units"]] == [(8, "0-7")] * 2


@pytest.mark.parametrize(("rows", "reason"), [(6, "6 rows cannot be divided over 4 replicas"), (8, "")])
def test_rows_that_cannot_be_divided_are_the_reason_for_no_plan(monkeypatch, rows, reason):
    monkeypatch.setattr(auto, "PLANNING_POLICIES", dict(auto.BUILT_IN_POLICIES))
    load_example("custom_policy")
    assert run_policy(problem(devices=4, rows=rows), "replicated").reason == reason
