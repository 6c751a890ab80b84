"""Plans on fewer devices are those of the smaller cluster, and end where the model no longer fits."""

from sharding.planners.policies.auto import run_policy
from sharding.planners.policies.best_plan import best_simulated
from sharding.planners.policies.disaggregated import plans_of_best_size
from sharding.planners.policies.policy_comparison import SHARES, compare_policies, plans_on_fewer_devices
from tests.sharding.planners.problems import problem


def test_they_are_the_plans_of_smaller_clusters_with_longer_steps():
    results = plans_on_fewer_devices(problem(devices=16), 16)
    assert len(results) == len(SHARES)
    for share, result in zip(SHARES, results, strict=True):
        alone = problem(devices=int(16 * share))
        assert result.plan == best_simulated(alone, plans_of_best_size(alone)).plan
        assert result.plan.device_count <= share * 16
    assert results[0].timeline.step < results[1].timeline.step


def test_a_model_that_needs_all_devices_has_none():
    case = problem(devices=4, memory=1.2e7)
    assert plans_on_fewer_devices(case, 4) == []


def test_only_a_comparison_with_the_policy_has_them():
    case = problem(devices=12)
    comparison = compare_policies(case)
    assert comparison.on_fewer_devices[0].plan.device_count < comparison.plan.device_count
    assert compare_policies(case, "rigid").on_fewer_devices == ()


def test_the_same_problem_on_other_devices_shares_its_tables():
    case = problem(devices=12)
    fewer = case.with_devices(6)
    assert fewer.module_tables is case.module_tables and fewer.devices == 6
    assert run_policy(fewer, "disaggregated").plan == run_policy(problem(devices=6), "disaggregated").plan
