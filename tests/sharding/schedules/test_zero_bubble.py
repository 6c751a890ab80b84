"""ZB-H1: as short as the paper says on chains, within 1F1B's memory, and on any graph an order that can run."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.costs.step_costs import StageWork, StepWork, WgradCosts
from sharding.planners.step_bound import least_step_seconds
from sharding.schedules.checks import check_schedule
from sharding.schedules.in_flight import InFlightMicrobatches
from sharding.schedules.interleaved_1f1b import interleaved
from sharding.schedules.ops import OpGraph, PipelineOp, ScheduleError, StageSeconds
from sharding.schedules.pass_seconds import pass_seconds
from sharding.schedules.zero_bubble import zero_bubble, zero_bubble_in_flight
from tests.sharding.stage_graphs import build_op_graph, chain, recipes, ring
from tests.sharding.steps import SimulatedStep, single_devices, stage_costs, step_costs, with_split_stages


def on_chain(ranks, chunks, microbatches, *, splits):
    """All stages train; forwards, dgrads and wgrads take a second each."""
    graph = ring(ranks, chunks)
    everything = frozenset(graph.stages)
    split = everything - {graph.stages[0]} if splits else frozenset()
    whole, divided = StageSeconds(1.0, 2.0), StageSeconds(1.0, 1.0, wgrad=1.0)
    return OpGraph(
        stage_graph=graph,
        microbatches=microbatches,
        backward_stages=everything,
        trained_stages=everything,
        split_stages=split,
        seconds={stage: divided if stage in split else whole for stage in graph.stages},
    )


@settings(deadline=None, max_examples=40)
@given(ranks=st.integers(1, 6), chunks=st.integers(1, 3), groups=st.integers(1, 4))
def test_a_chain_idles_a_third_of_what_it_does_in_1f1b(ranks, chunks, groups):
    microbatches = ranks * groups
    takes = {
        splits: pass_seconds(order(on_chain(ranks, chunks, microbatches, splits=splits)))
        for splits, order in ((True, zero_bubble), (False, interleaved))
    }
    assert takes[True] == 3 * microbatches * chunks + (ranks - 1)
    assert takes[False] == 3 * microbatches * chunks + 3 * (ranks - 1)


@settings(deadline=None, max_examples=40)
@given(ranks=st.integers(1, 6), microbatches=st.integers(1, 12))
def test_no_rank_holds_more_microbatches_than_the_first_of_1f1b(ranks, microbatches):
    op_graph = on_chain(ranks, 1, microbatches, splits=True)
    held = InFlightMicrobatches(op_graph)
    most = dict.fromkeys(op_graph.stage_graph.stages_of, 0)
    for op in zero_bubble(op_graph).ops:
        held.record(op)
        most = {rank: max(count, held[rank]) for rank, count in most.items()}
    assert max(most.values()) <= min(ranks, microbatches)


@settings(deadline=None, max_examples=60)
@given(recipes())
def test_on_any_graph_the_order_can_run(recipe):
    op_graph = with_split_stages(build_op_graph(recipe))
    schedule = zero_bubble(op_graph)
    check_schedule(schedule, zero_bubble_in_flight(op_graph))
    wgrads = [op for op in schedule.ops if op.kind == "wgrad"]
    assert len(wgrads) == len(op_graph.split_stages) * op_graph.microbatches


def test_a_reduction_waits_for_the_wgrads():
    op_graph = on_chain(2, 1, 3, splits=True)
    reduction = PipelineOp("reduce", "unit", 1)
    assert op_graph.dependencies[reduction] == tuple(PipelineOp("wgrad", "unit", 1, number) for number in range(3))
    ops = zero_bubble(op_graph).ops
    early = [op for op in ops if op != reduction]
    early.insert(early.index(PipelineOp("wgrad", "unit", 1, 2)), reduction)
    with pytest.raises(ScheduleError, match="reduce unit 1 is scheduled before wgrad unit 1 of microbatch 2"):
        check_schedule(dataclasses.replace(zero_bubble(op_graph), ops=tuple(early)), zero_bubble_in_flight(op_graph))


def test_a_stage_without_parameters_to_train_has_no_wgrad():
    graph = chain(2)
    with pytest.raises(
        ScheduleError, match=r"stage \('unit', 1\) trains nothing, so there are no gradients of weights"
    ):
        OpGraph(
            stage_graph=graph,
            microbatches=1,
            backward_stages=frozenset(graph.stages),
            trained_stages=frozenset(graph.stages[:1]),
            split_stages=frozenset(graph.stages[1:]),
        )


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 1), (2, 2), (3, 2), (3, 4), (4, 8)])
def test_a_step_is_no_shorter_than_its_bound(ranks, microbatches):
    """The wgrads of the last rank run while its last gradient goes back, so both do not add up."""
    op_graph = on_chain(ranks, 1, microbatches, splits=True)
    ones = np.ones((microbatches, 1))
    stages = {
        stage: stage_costs(ones, 2 * ones, wgrad=WgradCosts(ones, ones) if stage in op_graph.split_stages else None)
        for stage in op_graph.stage_graph.stages
    }
    work = StageWork(
        forward=np.full(1, 1.0 * microbatches),
        backward=np.full(1, 2.0 * microbatches),
        computing=np.full(1, 3.0 * microbatches),
        slowest=np.full(microbatches, 3.0),
        least_forward=1.0,
        least_backward=2.0,
        gather=0.0,
        reduce=0.0,
        update=0.0,
    )
    edges = dict.fromkeys(op_graph.stage_graph.edges, 0.0)
    bound = least_step_seconds(op_graph, StepWork(dict.fromkeys(op_graph.stage_graph.stages, work), edges, edges, 0.0))
    step = (
        SimulatedStep(single_devices(op_graph.stage_graph), zero_bubble(op_graph), step_costs(op_graph, stages))
        .run()
        .step
    )
    assert step == 3 * microbatches + ranks - 1 or microbatches < ranks
    assert 3 * microbatches <= bound <= step
