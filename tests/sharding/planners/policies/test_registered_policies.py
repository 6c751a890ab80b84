"""Planning policies of a user's own: compared with the others, and refused where their plans cannot hold the model."""

import dataclasses

import pytest

from configs.common.errors import UserError
from sharding.planners.policies import auto
from sharding.planners.policies.auto import PLANNING_POLICIES, plan_automatically, register_policy, run_policy
from sharding.plans.plan_error import PlanError
from tests.sharding.planners.problems import problem


@pytest.fixture(autouse=True)
def without_registrations(monkeypatch):
    """Undoes what a test registers."""
    monkeypatch.setattr(auto, "PLANNING_POLICIES", dict(PLANNING_POLICIES))


def test_a_registered_policy_is_compared_with_the_others():
    case = problem(devices=12)
    best = plan_automatically(case)
    gpipe = dataclasses.replace(best.plan, schedule="gpipe")
    register_policy("mine", lambda _: [gpipe, best.plan])
    result = run_policy(case, "mine")
    assert result.plan in (gpipe, best.plan) and result.timeline.step == best.timeline.step
    register_policy("mine", lambda _: [gpipe])
    assert run_policy(case, "mine").plan == gpipe
    assert [*auto.PLANNING_POLICIES] == [*auto.BUILT_IN_POLICIES, "mine"]
    assert plan_automatically(case).plan == best.plan


def test_the_reason_of_a_policy_without_a_plan_is_kept():
    case = problem(devices=12)

    def refuse(problem):
        raise PlanError(f"{problem.devices} devices are too many")

    plan = run_policy(case, "disaggregated").plan
    off_the_cluster = dataclasses.replace(
        plan.units[0], devices=(12,), parallelism=dataclasses.replace(plan.units[0].parallelism, dp=1, tp=1)
    )
    for policy, reason in (
        (refuse, "12 devices are too many"),
        (lambda _: [], "the policy returns no plan"),
        (lambda _: [dataclasses.replace(plan, units=plan.units[1:])], "is in no unit"),
        (lambda _: [dataclasses.replace(plan, units=(off_the_cluster, *plan.units[1:]))], "device 12"),
        (lambda _: [dataclasses.replace(plan, schedule="none")], "the plan's schedule is 'none'"),
        (lambda _: [dataclasses.replace(plan, microbatches=5)], "not divisible by 5 microbatches"),
    ):
        register_policy("mine", policy)
        result = run_policy(case, "mine")
        assert result.simulated is None and reason in result.reason


@pytest.mark.parametrize("name", ["auto", "rigid"])
def test_a_built_in_policy_keeps_its_name(name):
    with pytest.raises(UserError, match=f"the policy '{name}' is built in; register yours under another name"):
        register_policy(name, lambda _: [])
