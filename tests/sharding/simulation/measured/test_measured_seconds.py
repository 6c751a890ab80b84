"""Means of measured ops:

by replica and pipeline replica, and what another order takes by them is what the simulator says.
"""

import collections

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.plans.resolved.stage_graph import PipelineReplicas, StageGraph
from sharding.schedules.interleaved_1f1b import interleaved
from sharding.schedules.one_f_one_b import gpipe, one_f_one_b
from sharding.schedules.ops import COMPUTE_KINDS, PipelineOp
from sharding.simulation.measured.measured_seconds import mean_seconds, pass_of_timeline
from sharding.simulation.op_spans.spans import Span
from sharding.simulation.simulator import simulate_on_devices
from sharding.simulation.timeline import Timeline
from tests.sharding.stage_graphs import build_op_graph, recipes, training
from tests.sharding.steps import build_step, stage_costs, step_costs, step_recipes


@settings(max_examples=25, deadline=None)
@given(
    recipe=recipes(),
    seconds=st.lists(st.integers(1, 64).map(lambda n: n / 64), min_size=6, max_size=6),
    rendezvous=st.booleans(),
)
def test_a_pass_in_another_order_takes_what_its_simulation_takes(recipe, seconds, rendezvous):
    op_graph = build_op_graph(recipe)
    graph = op_graph.stage_graph
    costs = {
        stage: stage_costs(
            np.full((op_graph.microbatches, 1), seconds[number % 6]),
            np.full((op_graph.microbatches, 1), seconds[-1 - number % 6] * (stage in op_graph.backward_stages)),
        )
        for number, stage in enumerate(graph.stages)
    }
    devices = {  # of each pipeline replica one replica
        stage: np.array([sorted(graph.rank_devices[rank]) for rank in graph.ranks_of[stage]]) for stage in graph.stages
    }
    costs = step_costs(op_graph, costs, hop=seconds[0] / 4)
    timelines = {
        policy: simulate_on_devices(devices, policy(op_graph), costs, rendezvous)
        for policy in (gpipe, one_f_one_b, interleaved)
    }
    means = mean_seconds(timelines[gpipe])
    for policy, timeline in timelines.items():
        assert means.pass_of(policy(op_graph)) == pass_of_timeline(timeline)


@settings(max_examples=25, deadline=None)
@given(step_recipes())
def test_a_stage_takes_the_mean_of_its_slowest_replica(recipe):
    timeline = build_step(recipe).run()
    graph, means = timeline.op_graph.stage_graph, mean_seconds(timeline)
    for stage in graph.stages:
        for kind in COMPUTE_KINDS:
            spans = [span for span in timeline.spans if span.op.kind == kind and span.op.stage_id == stage]
            by_pipeline_replica = collections.defaultdict(list)
            for span in spans:
                by_pipeline_replica[graph.pipeline_replica_of_microbatch(stage[0], span.op.microbatch)].append(
                    span.own_seconds
                )
            slowest = max((np.mean(taken, axis=0).max() for taken in by_pipeline_replica.values()), default=0.0)
            assert means.of_stage(graph, kind, stage) == slowest


def test_each_copy_of_a_unit_has_its_own_mean():
    pipeline_replicas = {"encoder": PipelineReplicas((frozenset([0]), frozenset([1])), (0, 1, 0, 1))}
    graph = StageGraph({("encoder", 0): frozenset([0, 1])}, (), pipeline_replicas=pipeline_replicas)
    spans = [
        Span(PipelineOp("forward", "encoder", 0, number), np.zeros(1), np.array([seconds]), np.zeros(1))
        for number, seconds in enumerate((1.0, 4.0, 2.0, 6.0))
    ]
    means = mean_seconds(Timeline(training(graph, 4), {("encoder", 0): np.array([[0, 1]])}, None, tuple(spans)))
    assert sorted(float(seconds[0]) for seconds in means.by_op.values()) == [1.5, 5.0]
    assert means.of_stage(graph, "forward", ("encoder", 0)) == 5.0
