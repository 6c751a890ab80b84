"""The arrays of a chain add up to what the same plan costs, layer by layer, policy by policy."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.architectures import BackboneConfig, DiTConfig, ModelConfig, VisionConfig
from configs.clusters import Link
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import BatchCosts
from sharding.costs.stages.plan_costs import plan_costs
from sharding.planners.stages.chain_costs import layer_chain
from sharding.planners.stages.chain_layout import ChainLayout
from sharding.planners.stages.chain_stages import ChainStages, uniform_stages
from sharding.planners.stages.layer_chain import stage_sums
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.specs.layers.layer import RECOMPUTE_POLICIES
from sharding.specs.modules import module_graph
from tests.sharding.expert_graphs import with_experts
from tests.sharding.planners.problems import BACKBONE, VISION, cluster, problem

LAYOUT = ChainLayout(modules=("vision", "backbone"), pp=2, dp=2, tp=2, microbatches=2, collectives="sequence_parallel")


def problem_beside_a_slow_host(*args, **kwargs):
    slow = dataclasses.replace(cluster(1e9), host_link=Link(1e6, 1e-6), host_memory=1e12)
    return dataclasses.replace(problem(*args, **kwargs), cluster=slow, costs=AnalyticCostModel(slow))


def chain_of(case, layout):
    return layer_chain(case.sampled_costs, case.trained_parts, layout, RECOMPUTE_POLICIES, 2)


@pytest.mark.parametrize("policy", RECOMPUTE_POLICIES)
@pytest.mark.parametrize("trainable", [("all",), ("projectors", "backbone"), ("projectors",)])
def test_stages_cost_what_their_layers_do(policy, trainable):
    case = problem_beside_a_slow_host(ModelConfig((VISION,), BACKBONE, ()), trainable=trainable)
    chain, counts = chain_of(case, LAYOUT), (4, 3)
    plan = uniform_stages(chain, counts, policy).plan(chain, LAYOUT)
    costs = plan_costs(ResolvedPlan(plan, case.sampled_costs.graph, case.trained_parts), case.sampled_costs).stages
    number = chain.policies.index(policy)
    for stage, forward in enumerate(stage_sums(chain.forward[:, number], counts)):
        stage_costs = costs["backbone", stage]
        ends = slice(sum(counts[:stage]), sum(counts[: stage + 1]))
        assert stage_costs.forward.mean() == pytest.approx(forward)
        assert stage_costs.backward.mean() == pytest.approx(stage_sums(chain.backward[:, number], counts)[stage])
        held = chain.held_bytes[ends, number]
        assert stage_costs.saved_bytes.max() <= held[:, 0].sum() * (1 + 1e-9)
        assert stage_costs.saved_bytes.sum(axis=0).max() == pytest.approx(held[:, 1].sum(), rel=0.05)
        workspace = chain.workspace[ends, number].max()
        assert stage_costs.static_bytes == pytest.approx(chain.static_bytes[ends].sum() + workspace)


@pytest.mark.parametrize("policy", RECOMPUTE_POLICIES)
def test_layers_wait_in_both_passes_for_a_slow_host_link(policy):
    case = problem_beside_a_slow_host(ModelConfig((VISION,), BACKBONE, ()))
    chain = chain_of(case, LAYOUT)
    stages = uniform_stages(chain, (4, 3), policy)
    costs = plan_costs(
        ResolvedPlan(stages.plan(chain, LAYOUT), case.sampled_costs.graph, case.trained_parts), case.sampled_costs
    ).stages
    for stage, seconds in enumerate(stages.rank_seconds(chain, LAYOUT.pp)):
        stage_costs = costs["backbone", stage]
        assert (stage_costs.forward + stage_costs.backward).mean() == pytest.approx(seconds)
    number = chain.policies.index(policy)
    assert (chain.forward[:, number] > chain.plain_forward * 1.5).all() == (policy == "offload")
    np.testing.assert_array_equal(chain.plain_forward, chain.forward[:, chain.policies.index("none")])


def test_layers_are_those_of_the_modules_and_equal_ones_have_one_kind():
    case = problem_beside_a_slow_host()
    layout = ChainLayout(modules=("vision", "backbone", "generator"), pp=2, dp=2, tp=2, microbatches=2)
    chain = chain_of(case, layout)
    depth = case.graph["generator"].layer_count
    assert chain.layers.tolist() == [1] * (VISION.depth + BACKBONE.depth) + [depth]  # a U-Net is not cut
    assert chain.modules == ("vision",) * VISION.depth + ("backbone",) * BACKBONE.depth + ("generator",)
    assert chain.stage_layers((3, 5)) == (3, 4 + depth)
    assert chain.kinds.tolist() == [0, 1, 2, 3, 4, 4, 5, 6]
    total = sum(module.parameter_count for module in case.graph.modules)
    assert chain.parameters.sum() == pytest.approx(total)
    for kind in set(chain.kinds.tolist()):
        same = chain.kinds == kind
        for array in (chain.forward, chain.backward, chain.held_bytes, chain.workspace, chain.static_bytes):
            assert (array[same] == array[same][0]).all()


def test_runs_of_unlike_blocks_in_one_module_are_kinds_of_their_own():
    generator = DiTConfig(image_size=16, double_layers=3, single_layers=3, plain_layers=0)
    case = problem_beside_a_slow_host(ModelConfig((), BACKBONE, (generator,)))
    layout = ChainLayout(modules=("backbone", "generator"), pp=2, dp=2, tp=2, microbatches=2)
    chain = chain_of(case, layout)
    assert chain.kinds.tolist() == [0, 1, 1, 2, 3, 4, 4, 5, 5, 6]
    assert chain.parameters.sum() == pytest.approx(sum(module.parameter_count for module in case.graph.modules))
    for counts in ((4, 6), (5, 5), (7, 3), (8, 2)):
        plan = uniform_stages(chain, counts, "none").plan(chain, layout)
        costs = plan_costs(ResolvedPlan(plan, case.sampled_costs.graph, case.trained_parts), case.sampled_costs).stages
        expected = stage_sums(chain.forward[:, chain.policies.index("none")], counts)
        for stage, forward in enumerate(expected):
            assert costs[plan.units[0].name, stage].forward.mean() == pytest.approx(forward)


def test_a_module_with_fewer_tensor_ranks_has_more_replicas():
    case = problem_beside_a_slow_host(ModelConfig((VISION,), BACKBONE, ()))
    layout = ChainLayout(modules=("vision", "backbone"), pp=2, dp=1, tp=2, module_tp=(1, 2), microbatches=4)
    chain = chain_of(case, layout)
    alone = chain_of(case, ChainLayout(modules=("vision",), pp=1, dp=2, tp=1, microbatches=4))
    eyes = slice(0, VISION.depth)
    np.testing.assert_allclose(chain.held_bytes[eyes], alone.held_bytes)
    np.testing.assert_allclose(chain.static_bytes[eyes], alone.static_bytes)


def random_step(seed, sizes, depth, chunks, trainable, experts, image_sizes):
    """A chain on a step of random rows, its layout, and what its ranks take by the chain and by the plan's costs."""
    random, (eyes, words, dp) = np.random.default_rng(seed), sizes
    encoder = VisionConfig(width=80, depth=depth, heads=20, ffn=100)
    backbone = BackboneConfig(vocabulary=200, width=128, depth=4, heads=4, kv_heads=4, ffn=240)
    graph = module_graph(ModelConfig((encoder,), backbone, ()))
    shared = dp * words // int(np.lcm(eyes, words))
    layout = ChainLayout(
        modules=("vision", "backbone"),
        pp=2,
        dp=dp,
        tp=words,
        module_tp=(eyes, words) if eyes != words else (),
        chunks=chunks,
        ep=2 if experts and shared % 2 == 0 else 1,
        microbatches=4,
        collectives="sequence_parallel",
    )
    rows = 8 * int(np.lcm.reduce([layout.replicas_of(name) for name in layout.modules]))
    images, patches = random.integers(0, 6, rows), 64.0 + 32 * random.integers(0, image_sizes, rows)
    text = random.uniform(100, 300, (rows, 1))
    loads = {
        "vision": images[:, None] * np.stack([patches, patches**2, np.ones(rows), np.zeros(rows)], axis=1),
        "backbone": text * [1.0, 50.0, 0.01, 0.0],
    }
    toy = dataclasses.replace(cluster(1e9), host_link=Link(1e6, 1e-6), host_memory=1e12)
    batch = BatchCosts(with_experts(graph, 4) if experts else graph, AnalyticCostModel(toy), loads)
    trained = trained_parts(graph, trainable)
    chain = layer_chain(batch, trained, layout, RECOMPUTE_POLICIES, 4)
    cuts = np.sort(random.choice(np.arange(1, depth + 4), layout.stage_count - 1, replace=False))
    counts = tuple(np.diff([0, *cuts, depth + 4]).tolist())
    stages = ChainStages(counts, random.integers(0, len(RECOMPUTE_POLICIES), depth + 4))
    costs = plan_costs(ResolvedPlan(stages.plan(chain, layout), batch.graph, trained), batch).stages
    by_stage = [costs["backbone", stage] for stage in range(len(counts))]
    by_plan = [sum((stage.forward + stage.backward).mean() for stage in by_stage[rank::2]) for rank in range(2)]
    return stages.rank_seconds(chain, 2), np.array(by_plan)


TRAINABLE = st.sampled_from([("all",), ("backbone",), ("projectors",)])


@given(
    seed=st.integers(0, 1_000_000),
    sizes=st.sampled_from([(1, 2, 2), (1, 4, 1), (5, 1, 10), (5, 2, 5), (2, 2, 2)]),
    depth=st.integers(1, 4),
    chunks=st.integers(1, 2),
    trainable=TRAINABLE,
)
@settings(deadline=None, max_examples=25)
def test_ranks_take_what_the_costs_of_the_plan_say_where_modules_differ_in_tensor_ranks(
    seed, sizes, depth, chunks, trainable
):
    """The slowest of the replicas that share devices, whose images are of one size, and gathers between modules."""
    np.testing.assert_allclose(*random_step(seed, sizes, depth, chunks, trainable, experts=False, image_sizes=1))


@given(seed=st.integers(0, 1_000_000), sizes=st.sampled_from([(1, 2, 2), (2, 2, 2), (1, 4, 4)]), trainable=TRAINABLE)
@settings(deadline=None, max_examples=10)
def test_experts_of_ranks_wait_for_each_other_as_in_the_costs_of_the_plan(seed, sizes, trainable):
    """The backbone has one replica on the devices that are shared."""
    np.testing.assert_allclose(*random_step(seed, sizes, 3, 1, trainable, experts=True, image_sizes=1))


@given(st.integers(0, 1_000_000), st.sampled_from([(1, 2, 2), (5, 1, 10), (5, 2, 5)]), st.booleans())
@settings(deadline=None, max_examples=10)
def test_where_the_slowest_replica_differs_by_layer_ranks_take_no_less_than_the_plan(seed, sizes, experts):
    by_chain, by_plan = random_step(seed, sizes, 3, 1, ("all",), experts, image_sizes=5)
    assert (by_chain >= by_plan * (1 - 1e-9)).all() and (by_chain <= by_plan * 1.05).all()
