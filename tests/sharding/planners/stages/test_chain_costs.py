"""The arrays of a chain add up to what the same plan costs, layer by layer, policy by policy."""

import dataclasses

import numpy as np
import pytest

from configs.architectures import ModelConfig
from configs.clusters import Link
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.plan_costs import plan_costs
from sharding.planners.stages.chain_costs import layer_chain
from sharding.planners.stages.chain_layout import ChainLayout
from sharding.planners.stages.chain_stages import uniform_stages
from sharding.planners.stages.layer_chain import stage_sums
from sharding.specs.layer import RECOMPUTE_POLICIES
from tests.sharding.planners.problems import BACKBONE, VISION, cluster, problem

LAYOUT = ChainLayout(modules=("vision", "backbone"), pp=2, dp=2, tp=2, microbatches=2, collectives="gather")


def problem_beside_a_slow_host(*args, **kwargs):
    slow = dataclasses.replace(cluster(1e9), host_link=Link(1e6, 1e-6), host_memory=1e12)
    return dataclasses.replace(problem(*args, **kwargs), cluster=slow, costs=AnalyticCostModel(slow))


def chain_of(of, layout):
    return layer_chain(of.sampled_costs, of.trained_parts, layout, RECOMPUTE_POLICIES, 2)


@pytest.mark.parametrize("policy", RECOMPUTE_POLICIES)
@pytest.mark.parametrize("trainable", [("all",), ("projectors", "backbone"), ("projectors",)])
def test_stages_cost_what_their_layers_do(policy, trainable):
    of = problem_beside_a_slow_host(ModelConfig((VISION,), BACKBONE, ()), trainable=trainable)
    chain, counts = chain_of(of, LAYOUT), (4, 3)
    plan = uniform_stages(chain, counts, policy).plan(chain, LAYOUT)
    costs = plan_costs(plan, of.sampled_costs, of.trained_parts).stages
    number = chain.policies.index(policy)
    for stage, forward in enumerate(stage_sums(chain.forward[:, number], counts)):
        found = costs["backbone", stage]
        ends = slice(sum(counts[:stage]), sum(counts[: stage + 1]))
        assert found.forward.mean() == pytest.approx(forward)
        assert found.backward.mean() == pytest.approx(stage_sums(chain.backward[:, number], counts)[stage])
        held = chain.held_bytes[ends, number]
        assert found.saved_bytes.max() <= held[:, 0].sum() * (1 + 1e-9)
        assert found.saved_bytes.sum(axis=0).max() == pytest.approx(held[:, 1].sum(), rel=0.05)
        workspace = chain.workspace[ends, number].max()
        assert found.static_bytes == pytest.approx(chain.static_bytes[ends].sum() + workspace)


@pytest.mark.parametrize("policy", RECOMPUTE_POLICIES)
def test_layers_wait_in_both_passes_for_a_slow_host_link(policy):
    of = problem_beside_a_slow_host(ModelConfig((VISION,), BACKBONE, ()))
    chain = chain_of(of, LAYOUT)
    stages = uniform_stages(chain, (4, 3), policy)
    costs = plan_costs(stages.plan(chain, LAYOUT), of.sampled_costs, of.trained_parts).stages
    for stage, seconds in enumerate(stages.rank_seconds(chain, LAYOUT.pp)):
        of_stage = costs["backbone", stage]
        assert (of_stage.forward + of_stage.backward).mean() == pytest.approx(seconds)
    number = chain.policies.index(policy)
    assert (chain.forward[:, number] > chain.plain_forward * 1.5).all() == (policy == "offload")
    np.testing.assert_array_equal(chain.plain_forward, chain.forward[:, chain.policies.index("none")])


def test_layers_are_those_of_the_modules_and_equal_ones_have_one_kind():
    of = problem_beside_a_slow_host()
    layout = ChainLayout(modules=("vision", "backbone", "generator"), pp=2, dp=2, tp=2, microbatches=2)
    chain = chain_of(of, layout)
    depth = of.graph["generator"].layer_count
    assert chain.layers.tolist() == [1] * (VISION.depth + BACKBONE.depth) + [depth]  # a U-Net is not cut
    assert chain.modules == ("vision",) * VISION.depth + ("backbone",) * BACKBONE.depth + ("generator",)
    assert chain.stage_layers((3, 5)) == (3, 4 + depth)
    assert chain.kinds.tolist() == [0, 1, 2, 3, 4, 4, 5, 6]
    total = sum(module.parameter_count for module in of.graph.modules)
    assert chain.parameters.sum() == pytest.approx(total)
    for kind in set(chain.kinds.tolist()):
        same = chain.kinds == kind
        for array in (chain.forward, chain.backward, chain.held_bytes, chain.workspace, chain.static_bytes):
            assert (array[same] == array[same][0]).all()


def test_a_module_with_fewer_tensor_ranks_has_more_replicas():
    of = problem_beside_a_slow_host(ModelConfig((VISION,), BACKBONE, ()))
    layout = ChainLayout(modules=("vision", "backbone"), pp=2, dp=1, tp=2, module_tp=(1, 2), microbatches=4)
    chain = chain_of(of, layout)
    alone = chain_of(of, ChainLayout(modules=("vision",), pp=1, dp=2, tp=1, microbatches=4))
    eyes = slice(0, VISION.depth)
    np.testing.assert_allclose(chain.forward[eyes], alone.forward)
    np.testing.assert_allclose(chain.held_bytes[eyes], alone.held_bytes)
    np.testing.assert_allclose(chain.static_bytes[eyes], alone.static_bytes)
