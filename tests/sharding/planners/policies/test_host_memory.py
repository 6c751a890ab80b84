"""What is offloaded has to fit the host: where it does not, a policy plans without, and errors name the host."""

import dataclasses

from configs.architectures import ModelConfig
from configs.clusters import Link
from sharding.costs.analytic import AnalyticCostModel
from sharding.planners.policies.auto import run_policy
from sharding.specs.layers.layer import RECOMPUTE_POLICIES
from tests.sharding.planners.problems import BACKBONE, VISION, cluster, problem

CHAIN = ModelConfig((dataclasses.replace(VISION, depth=8),), dataclasses.replace(BACKBONE, depth=8), ())


def on_host(host_memory, choices):
    """A chain that needs recomputation, on devices with a fast link to a host."""
    toy = dataclasses.replace(cluster(2.15e7), host_link=Link(1e12, 1e-9), host_memory=host_memory)
    case = problem(CHAIN, devices=2, rows=8)
    return dataclasses.replace(
        case, cluster=toy, costs=AnalyticCostModel(toy), tensor_sizes=(1,), recompute_choices=choices
    )


def policies(result):
    return {policy for unit in result.plan.units for stage in range(unit.pp) for policy in unit.layer_recompute(stage)}


def test_without_room_on_the_host_nothing_is_offloaded():
    assert "offload" in policies(run_policy(on_host(1e9, RECOMPUTE_POLICIES), "balanced"))
    alone = run_policy(on_host(1e3, ("none", "selective", "full")), "balanced")
    without = run_policy(on_host(1e3, RECOMPUTE_POLICIES), "balanced")
    assert without.plan == alone.plan and without.timeline.step == alone.timeline.step


def test_the_memory_that_is_exceeded_is_named():
    result = run_policy(on_host(1e3, ("offload",)), "balanced")
    assert result.simulated is None
    assert "GB of host memory for each device, 0.0 GB more than the 0 GB of toy" in result.reason
