"""Orders by the seconds of stages: valid, the simulator's seconds, never slower than by slots, the same everywhere."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.schedules.checks import check_schedule
from sharding.schedules.interleaved_1f1b import interleaved, interleaved_events, interleaved_in_flight
from sharding.schedules.named.registry import BUILT_IN_SCHEDULES
from sharding.schedules.numbered_passes import NumberedPasses
from sharding.schedules.one_f_one_b import one_f_one_b
from sharding.schedules.ops import OpGraph, StageSeconds
from sharding.schedules.pass_seconds import pass_seconds
from sharding.simulation.simulator import simulate_on_devices
from tests.sharding.hash_seeds import outputs_by_hash_seed
from tests.sharding.stage_graphs import build_op_graph, fan, recipes, training
from tests.sharding.steps import stage_costs, step_costs


def with_seconds(op_graph: OpGraph, seconds) -> OpGraph:
    """The same step, whose stages take the next of these seconds, repeated."""
    stages = op_graph.stage_graph.stages
    pairs = [StageSeconds(*seconds[2 * n % len(seconds) :][:2]) for n in range(len(stages))]
    return dataclasses.replace(op_graph, seconds=dict(zip(stages, pairs, strict=True)))


SECONDS = st.lists(st.integers(1, 64).map(lambda n: n / 16), min_size=8, max_size=8)


@given(recipe=recipes(), seconds=SECONDS)
@settings(max_examples=40, deadline=None)
def test_an_order_by_seconds_is_valid_and_never_slower_than_by_slots(recipe, seconds):
    by_slots = build_op_graph(recipe)
    by_seconds = with_seconds(by_slots, seconds)
    schedule = interleaved(by_seconds)
    check_schedule(schedule, interleaved_in_flight(by_seconds))
    present = dataclasses.replace(interleaved(by_slots), op_graph=by_seconds)
    assert simulated(schedule) <= simulated(present)


@given(recipe=recipes(), seconds=SECONDS)
@settings(max_examples=25, deadline=None)
def test_a_pass_takes_the_simulators_seconds(recipe, seconds):
    op_graph = with_seconds(build_op_graph(recipe), seconds)
    for order in (one_f_one_b, interleaved):
        schedule = order(op_graph)
        assert pass_seconds(schedule) == simulated(schedule)


@given(recipe=recipes(), seconds=SECONDS)
@settings(max_examples=25, deadline=None)
def test_seconds_change_no_sum_over_microbatches_and_only_the_orders_that_say_so(recipe, seconds):
    by_slots = build_op_graph(recipe)
    by_seconds = with_seconds(by_slots, seconds)
    for policy in BUILT_IN_SCHEDULES.values():
        ops = policy.order(by_seconds, policy.max_in_flight(by_seconds)).ops
        if not policy.reads_seconds:
            assert ops == policy.order(by_slots, policy.max_in_flight(by_slots)).ops
        if by_slots.stage_graph.pipeline_replicas:
            continue  # one may be ahead of another
        for stage, kind in itertools.product(by_slots.stage_graph.stages, ("forward", "backward")):
            numbers = [op.microbatch for op in ops if (op.stage_id, op.kind) == (stage, kind)]
            assert numbers == sorted(numbers)


def simulated(schedule) -> float:
    """The step of stages of one replica, without hops and without the ops that run once."""
    op_graph = schedule.op_graph
    costs = {
        stage: stage_costs(
            np.full((op_graph.microbatches, 1), seconds.forward),
            np.full((op_graph.microbatches, 1), seconds.backward * (stage in op_graph.backward_stages)),
        )
        for stage, seconds in op_graph.seconds.items()
    }
    graph = op_graph.stage_graph
    devices = {
        stage: np.array([sorted(graph.rank_devices[rank]) for rank in graph.ranks_of[stage]]) for stage in graph.stages
    }
    return simulate_on_devices(devices, schedule, step_costs(op_graph, costs)).step


def before_a_generator(speed: float, microbatches: int) -> OpGraph:
    """An encoder, a backbone of 5 ranks x 2 chunks, and generators that are `speed` times as fast as its ranks."""
    op_graph = training(fan(1, 1, 5, chunks=(1, 1, 2)), microbatches)
    generator, chunk = StageSeconds(2 / speed, 4 / speed), StageSeconds(1.0, 2.0)
    seconds = {stage: chunk if stage[0] == "backbone" else generator for stage in op_graph.stage_graph.stages}
    return dataclasses.replace(op_graph, seconds=seconds)


def lower_bound(op_graph: OpGraph) -> float:
    """The longest over the ranks: until an input can reach it, its work, and until its last gradient is at a source."""
    graph, seconds = op_graph.stage_graph, op_graph.seconds
    fill, drain = {}, {}
    for stage in graph.stages:
        fill[stage] = max((fill[source] + seconds[source].forward for source in graph.sources[stage]), default=0.0)
        drain[stage] = max((drain[source] + seconds[source].backward for source in graph.sources[stage]), default=0.0)
    return max(
        fill[stages[0]] + op_graph.microbatches * sum(sum(seconds[stage]) for stage in stages) + drain[stages[0]]
        for stages in graph.stages_of.values()
    )


@pytest.mark.parametrize("microbatches", [30, 32])
def test_interleaving_does_not_stall_behind_a_slower_generator(microbatches):
    op_graph = before_a_generator(1.0, microbatches)
    by_slots = dataclasses.replace(interleaved(dataclasses.replace(op_graph, seconds={})), op_graph=op_graph)
    assert pass_seconds(by_slots) > 1.33 * lower_bound(op_graph)
    assert pass_seconds(interleaved(op_graph)) < 1.09 * lower_bound(op_graph)


@pytest.mark.parametrize("microbatches", [30, 32])
def test_behind_a_fast_generator_the_papers_order_stays(microbatches):
    op_graph = before_a_generator(10.0, microbatches)
    orders = []
    for step in (op_graph, dataclasses.replace(op_graph, seconds={})):
        passes = NumberedPasses(step)
        orders.append(passes.started(interleaved_events(passes)))
    assert orders[0] == orders[1]
    assert pass_seconds(interleaved(op_graph)) < 1.03 * lower_bound(op_graph)


PROGRAM = """
import hashlib
from sharding.schedules.interleaved_1f1b import interleaved
from tests.sharding.schedules.test_order_by_seconds import before_a_generator
print(hashlib.sha256(repr(interleaved(before_a_generator(1.1, 16)).ops).encode()).hexdigest())
"""


@pytest.mark.processes
def test_every_process_makes_the_same_order():
    """Sets of strings have another order in every process."""
    assert len(outputs_by_hash_seed(PROGRAM)) == 1
