"""Plans under changed assumptions: every change reaches the simulated steps, and a choice that hangs on one turns."""

import dataclasses

import pytest

from configs.clusters import CLUSTERS
from configs.cost_effects import EFFECT_NAMES
from configs.device_generations import HOPPER_EFFECTS
from sharding.costs.analytic import AnalyticCostModel
from sharding.planners.policies.auto import run_policy
from sharding.planners.sensitivity import SLOWDOWN, Sensitivity, sensitivities
from tests.sharding.planners.problems import problem

PROBLEM = problem(devices=12)
H100 = dataclasses.replace(CLUSTERS["h100"], devices_per_node=4)
ON_H100 = dataclasses.replace(
    PROBLEM, costs=dataclasses.replace(PROBLEM.costs, cluster=H100), cluster=H100, hops="rendezvous"
)


@pytest.fixture(scope="module")
def plans():
    return run_policy(ON_H100, "disaggregated").plan, run_policy(ON_H100, "fsdp").plan


@pytest.fixture(scope="module")
def changes(plans):
    return {changed.assumption: changed for changed in sensitivities(ON_H100, *plans)}


def with_cluster(**changed):
    cluster = dataclasses.replace(H100, **changed)
    return dataclasses.replace(ON_H100, costs=dataclasses.replace(ON_H100.costs, cluster=cluster))


def steps(of_problem, plans, **options):
    return tuple(of_problem.simulate(plan, **options).step for plan in plans)


def test_every_effect_and_both_networks_are_changed_both_ways(changes):
    effects = {f"{how} {name}" for name in EFFECT_NAMES for how in ("no", "twice the")}
    networks = {f"{how} the bandwidth {where} nodes" for how in ("half", "twice") for where in ("between", "within")}
    rows = {"other rows of the data", "segments half as long", "segments twice as long"}
    slow = {"one replica of a backbone stage 10% slower"}
    assert set(changes) == effects | networks | rows | slow | {"hops occupy no device"}


def test_steps_are_what_the_changed_problem_simulates(plans, changes):
    slow = with_cluster(inter_node=dataclasses.replace(H100.inter_node, bandwidth=H100.inter_node.bandwidth / 2))
    assert changes["half the bandwidth between nodes"][1:] == steps(slow, plans)
    assert changes["no jitter"][1:] == steps(with_cluster(generation=H100.without(("jitter",)).generation), plans)
    assert changes["hops occupy no device"][1:] == steps(ON_H100, plans, rendezvous=False)
    other_rows = dataclasses.replace(ON_H100, seed=ON_H100.seed + 1)
    assert changes["other rows of the data"][1:] == steps(other_rows, plans)


def test_more_of_what_costs_is_never_faster(plans, changes):
    now = steps(ON_H100, plans)
    for name in EFFECT_NAMES:
        for less, same, more in zip(changes[f"no {name}"][1:], now, changes[f"twice the {name}"][1:], strict=True):
            assert less <= same * (1 + 1e-9) and same <= more * (1 + 1e-9), name
    for faster, same, slower in zip(
        changes["segments half as long"][1:], now, changes["segments twice as long"][1:], strict=True
    ):
        assert faster < same < slower


def test_a_slow_replica_costs_something_and_at_most_its_slowdown(plans, changes):
    for slow, now in zip(changes["one replica of a backbone stage 10% slower"][1:], steps(ON_H100, plans), strict=True):
        assert now < slow <= now * SLOWDOWN


def test_costs_that_are_not_analytic_have_no_effects_to_change(plans):
    class Measured:
        def __init__(self, costs):
            self._costs = costs

        def __getattr__(self, name):
            return getattr(self._costs, name)

    measured = dataclasses.replace(ON_H100, costs=Measured(ON_H100.costs))
    words = {changed.assumption for changed in sensitivities(measured, *plans)}
    assert not isinstance(measured.costs, AnalyticCostModel)
    assert words == {
        "hops occupy no device",
        "other rows of the data",
        "segments half as long",
        "segments twice as long",
        "one replica of a backbone stage 10% slower",
    }


def test_an_effect_twice_as_far_from_none():
    twice = HOPPER_EFFECTS.twice("throttling")
    assert twice.throttling == pytest.approx(2 * HOPPER_EFFECTS.throttling - 1)
    assert twice.without(("throttling",)) == HOPPER_EFFECTS.without(("throttling",))
    share, doubled = HOPPER_EFFECTS.convolution_share, HOPPER_EFFECTS.twice("convolutions").convolution_share
    assert 1 / doubled - 1 == pytest.approx(2 * (1 / share - 1))


def test_a_choice_turns_where_the_other_plan_is_faster():
    assert Sensitivity("a", 1.0, 0.9).turns and not Sensitivity("a", 1.0, 1.1).turns
    assert Sensitivity("a", 2.0, 1.0).ratio == 0.5
