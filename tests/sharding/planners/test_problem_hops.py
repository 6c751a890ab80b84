"""What hops occupy by default: the devices at both ends where a problem has more devices than a node."""

import dataclasses

import pytest

from sharding.plans.plan_error import PlanError
from tests.sharding.planners.problems import problem


@pytest.mark.parametrize(
    ("hops", "devices", "occupies"),
    [("auto", 4, False), ("auto", 5, True), ("asynchronous", 5, False), ("rendezvous", 4, True)],
)
def test_hops_between_nodes_occupy_both_ends_unless_it_is_said(hops, devices, occupies):
    case = dataclasses.replace(problem(devices=devices), hops=hops)
    assert case.cluster.devices_per_node == 4 and case.rendezvous == occupies


def test_another_timing_is_refused():
    with pytest.raises(PlanError, match="hops 'both'; choose from auto, asynchronous, rendezvous"):
        dataclasses.replace(problem(), hops="both")


@pytest.mark.parametrize(
    ("hops", "devices", "recorded"),
    [
        ("auto", 4, None),
        ("auto", 5, None),
        ("asynchronous", 4, None),
        ("rendezvous", 5, None),
        ("asynchronous", 5, "asynchronous"),
        ("rendezvous", 4, "rendezvous"),
    ],
)
def test_plans_record_what_hops_occupy_where_it_is_not_the_default(hops, devices, recorded):
    case = dataclasses.replace(problem(devices=devices), hops=hops)
    assert case.purpose.hops == recorded and case.with_devices(devices).purpose.hops == recorded
    assert case.purpose.occupied_by_hops == case.occupied_by_hops
