"""A replay takes the simulator's seconds for any graph, any devices and any order of every pipeline."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.balancing.reordering.replay import build_joined_replay, build_replay, count_pipelines
from sharding.costs.step_costs import PER_MICROBATCH, StageCosts, StepCosts
from sharding.plans.resolved.stage_graph import StageGraph
from sharding.schedules.interleaved_1f1b import interleaved
from sharding.schedules.one_f_one_b import one_f_one_b
from sharding.schedules.ops import PipelineOp, ScheduleError
from sharding.simulation.simulator import simulate_on_devices
from tests.sharding.stage_graphs import build_op_graph, recipes, training
from tests.sharding.steps import build_step, step_recipes

ROWS = 36


@given(step_recipes(bundles=False), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_step_takes_what_the_simulator_says(recipe, rendezvous):
    step = build_step(recipe)
    replay = build_replay(step.devices, step.schedule, step.costs, ROWS, rendezvous)
    orders = np.arange(replay.pipelines * replay.microbatches).reshape(replay.pipelines, -1)
    seconds = replay.step_seconds(replay.pipeline_microbatch_seconds(step.costs), orders)
    assert seconds.max() == step.run(rendezvous).step


@given(step_recipes(bundles=False), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_joined_replay_takes_no_less(recipe, rendezvous):
    step = build_step(recipe)
    replay = build_joined_replay(step.devices, step.schedule, step.costs, rendezvous)
    assert replay.pipelines == 1 and set(replay.replicas.values()) == {1}
    seconds = replay.step_seconds(replay.pipeline_microbatch_seconds(step.costs), replay.given_orders)
    assert seconds[0] >= step.run(rendezvous).step


def test_replicas_that_are_alike_are_joined_exactly():
    work = training(StageGraph({("encoder", 0): frozenset([0, 1]), ("mind", 0): frozenset([2, 3])}, ()), 4)
    devices = {("encoder", 0): np.array([[0], [1]]), ("mind", 0): np.array([[2], [3]])}
    one = random_costs(work, {"encoder": 1, "mind": 1}, np.random.default_rng(0))
    stages = {
        stage: dataclasses.replace(of, **{name: np.repeat(getattr(of, name), 2, axis=1) for name in PER_MICROBATCH})
        for stage, of in one.stages.items()
    }
    alike, schedule = dataclasses.replace(one, stages=stages), one_f_one_b(work)
    replay = build_joined_replay(devices, schedule, alike)
    seconds = replay.step_seconds(replay.pipeline_microbatch_seconds(alike), replay.given_orders)
    assert seconds[0] == simulate_on_devices(devices, schedule, alike).step


def test_bundles_are_refused():
    devices = {("encoder", 0): np.array([[0]]), ("backbone", 0): np.array([[0]])}
    op_graph = training(StageGraph(dict.fromkeys(devices, frozenset([0])), ()), 1)
    order = one_f_one_b(op_graph)
    together = frozenset([PipelineOp("forward", "backbone", 0, 0)])
    costs = random_costs(op_graph, {"encoder": 1, "backbone": 1}, np.random.default_rng(0))
    with pytest.raises(ScheduleError, match="forward backbone 0 of microbatch 0 runs in one program with another op"):
        build_replay(devices, dataclasses.replace(order, bundled=together), costs, ROWS)


def test_stages_whose_microbatches_run_in_one_program_are_refused():
    devices = {("mind", 0): np.array([[0]])}
    graph = StageGraph({("mind", 0): frozenset([0])}, (), compiled=frozenset(devices))
    op_graph = training(graph, 2)
    costs = random_costs(op_graph, {"mind": 1}, np.random.default_rng(0))
    with pytest.raises(ScheduleError, match='unit mind has the executor "compiled".* none and intra_microbatch'):
        build_replay(devices, one_f_one_b(op_graph, {("mind", 0): 2}), costs, ROWS)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple:
    """Instances of the near and far encoder, the backbone and two generators, and what `build_op_graph` takes."""
    depths, _, chunks, trained, shares, microbatches, pipeline_replicas = draw(recipes())
    instances = tuple(draw(st.sampled_from([1, 2, 3])) for _ in range(5))
    common = draw(st.integers(1, 4))
    recipe = (depths, None, chunks, trained, shares, microbatches, pipeline_replicas)
    return recipe, tuple(common * count for count in instances), draw(st.integers(0, 2**32 - 1))


@given(pipelines(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_every_pipeline_takes_its_own_order(drawn, rendezvous):
    recipe, counts, seed = drawn
    rng = np.random.default_rng(seed)
    work = build_op_graph(recipe)
    dp = dict(zip(("near", "far", "backbone", "paint", "draw"), counts, strict=True))
    devices, first = {}, 0
    for (unit, rank), nodes in work.stage_graph.stages_of.items():
        if rank == work.stage_graph.ranks_of[nodes[0]][0][1]:  # of the first pipeline replica; the others follow
            count = dp[unit] * work.stage_graph.pipeline_replica_count(unit)
            devices |= dict.fromkeys(nodes, np.arange(first, first + count)[:, None])
            first += count
    schedule = (interleaved if work.stage_graph.pp else one_f_one_b)(work)
    costs = random_costs(work, dp, rng)
    replay = build_replay(devices, schedule, costs, ROWS, rendezvous)
    is_joined = rendezvous and bool(work.tied_stages)  # their transfers wait for all replicas
    assert replay.pipelines == (1 if is_joined else math.gcd(ROWS, *counts))
    orders = np.stack([rng.permutation(work.microbatches) for _ in range(replay.pipelines)])
    pipeline_microbatches = orders + work.microbatches * np.arange(replay.pipelines)[:, None]
    seconds = replay.step_seconds(replay.pipeline_microbatch_seconds(costs), pipeline_microbatches)
    assert seconds.max() == simulate_on_devices(devices, schedule, reordered(costs, orders), rendezvous).step


def random_costs(work, dp, rng) -> StepCosts:
    def seconds(node):
        return rng.integers(0, 64, (work.microbatches, dp[node[0]])) / 64

    stages = {
        node: StageCosts(
            forward=seconds(node),
            backward=seconds(node) * (node in work.backward_stages),
            **dict.fromkeys(PER_MICROBATCH[2:], np.zeros((work.microbatches, dp[node[0]]))),
            **dict(zip(("gather", "reduce", "update"), rng.random(3), strict=True)),
        )
        for node in work.stage_graph.stages
    }
    edges = work.stage_graph.edges
    back = {(s, t): seconds(s) for s, t in edges if s in work.backward_stages}
    return StepCosts(
        stages=stages,
        hops={(s, t): seconds(t) for s, t in edges},
        gradient_hops=back,
        peak_flops=1.0,
        global_norm=float(rng.random()),
    )


def reordered(costs: StepCosts, orders: np.ndarray) -> StepCosts:
    """Costs in which every pipeline takes its own order, [pipelines, m]."""

    def take(seconds: np.ndarray) -> np.ndarray:
        pipeline_microbatches = seconds.reshape(len(seconds), len(orders), -1)
        return pipeline_microbatches[orders.T, np.arange(len(orders))].reshape(seconds.shape)

    stages = {
        node: dataclasses.replace(stage_costs, **{name: take(getattr(stage_costs, name)) for name in PER_MICROBATCH})
        for node, stage_costs in costs.stages.items()
    }
    hops, back = (
        {edge: take(seconds) for edge, seconds in by_edge.items()} for by_edge in (costs.hops, costs.gradient_hops)
    )
    return StepCosts(
        stages=stages, hops=hops, gradient_hops=back, peak_flops=costs.peak_flops, global_norm=costs.global_norm
    )


def test_units_on_the_same_devices_in_another_order_are_one_pipeline():
    devices = {("encoder", 0): np.array([[0], [1]]), ("backbone", 0): np.array([[0], [1]])}
    one = dict.fromkeys(devices, 1)
    assert count_pipelines(devices, 4, one) == 2
    assert count_pipelines(devices, 3, one) == 1
    assert count_pipelines(devices | {("backbone", 0): np.array([[1], [0]])}, 4, one) == 1


def test_a_pipeline_has_replicas_of_every_copy():
    pipeline_replicas = {("encoder", 0): 2, ("backbone", 0): 1}
    devices = {("encoder", 0): np.array([[0], [2], [1], [3]]), ("backbone", 0): np.array([[0, 1], [2, 3]])}
    assert count_pipelines(devices, 4, pipeline_replicas) == 2
    assert count_pipelines(devices | {("encoder", 0): np.array([[0], [1], [2], [3]])}, 4, pipeline_replicas) == 1
