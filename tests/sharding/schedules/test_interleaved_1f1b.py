"""Interleaved 1F1B has the paper's order on chains, and on any graph no deadlock, few bubbles and bounded memory."""

import collections
import itertools
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.schedules.checks import check_schedule
from sharding.schedules.interleaved_1f1b import interleaved, interleaved_in_flight
from sharding.schedules.list_scheduling import list_schedule
from sharding.schedules.named.build import forward_only
from sharding.schedules.one_f_one_b import gpipe, gpipe_in_flight, one_f_one_b, one_f_one_b_in_flight
from sharding.schedules.ops import OpGraph
from tests.sharding.schedules.slots import bubble_slots, op_slots
from tests.sharding.stage_graphs import chain, fan, ring, training


def run_by(schedule, stage_ids):
    """Forwards and backwards of some stages, in order: (kind, stage, microbatch)."""
    ops = [op for op in schedule.ops if op.kind in ("forward", "backward")]
    return [(op.kind, op.stage, op.microbatch) for op in ops if op.stage_id in stage_ids]


def papers_order(ranks: int, chunks: int, microbatches: int, rank: int) -> list[tuple[str, int, int]]:
    """A rank's ops by the paper's formula: chunk and microbatch follow from an op's running number."""

    def forward(number: int) -> tuple[str, int, int]:
        group, rest = divmod(number, ranks * chunks)
        return ("forward", rest // ranks * ranks + rank, group * ranks + rest % ranks)

    def backward(number: int) -> tuple[str, int, int]:
        group, rest = divmod(number, ranks * chunks)
        return ("backward", (chunks - 1 - rest // ranks) * ranks + rank, group * ranks + rest % ranks)

    total = microbatches * chunks
    warm_up = min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, total)
    order = [forward(number) for number in range(warm_up)]
    for number in range(total - warm_up):
        order += [forward(warm_up + number), backward(number)]
    return order + [backward(number) for number in range(total - warm_up, total)]


CHAINS = [(p, v, p * groups) for p in (1, 2, 3, 4) for v in (2, 3) for groups in (1, 2, 4)] + [(8, 5, 16)]


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), CHAINS)
def test_a_chain_has_the_papers_order_bubbles_and_residuals(ranks, chunks, microbatches):
    op_graph = training(ring(ranks, chunks), microbatches)
    schedule, bounds = interleaved(op_graph), interleaved_in_flight(op_graph)
    check_schedule(schedule, bounds)
    for rank in range(ranks):
        order = run_by(schedule, op_graph.stage_graph.stages_of["unit", rank])
        assert order == papers_order(ranks, chunks, microbatches, rank)
        held = max(itertools.accumulate(1 if kind == "forward" else -1 for kind, _, _ in order))
        assert held == min(bounds["unit", rank], microbatches * chunks)
        assert bounds["unit", rank] == 2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1
    # A slot is a v-th of a stage's forward or backward, so this is (p - 1) / v of both (section 2.2).
    assert set(bubble_slots(schedule).values()) == {2 * (ranks - 1)}


@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_without_chunks_it_is_1f1b(microbatches):
    op_graph = training(chain(4), microbatches)
    assert interleaved_in_flight(op_graph) == one_f_one_b_in_flight(op_graph)
    for stage in range(4):
        assert run_by(interleaved(op_graph), [("unit", stage)]) == run_by(one_f_one_b(op_graph), [("unit", stage)])


@given(st.integers(1, 5), st.integers(2, 4), st.integers(1, 13))
@settings(max_examples=25, deadline=None)
def test_any_number_of_microbatches_costs_little_more(ranks, chunks, microbatches):
    op_graph = training(ring(ranks, chunks), microbatches)
    schedule = interleaved(op_graph)
    check_schedule(schedule, interleaved_in_flight(op_graph))
    idle = 1 + max(op_slots(schedule).values()) - 2 * chunks * microbatches
    # The last, smaller group waits for each of its laps, forward and backward.
    spare = -microbatches % ranks
    assert 2 * (ranks - 1) <= idle <= 2 * (ranks - 1) + 2 * spare * (chunks - 1)


@pytest.mark.parametrize("microbatches", [4, 8, 12])
@pytest.mark.parametrize(("near", "far"), [(1, 1), (1, 3)])
def test_encoders_before_and_generators_behind_only_lengthen_the_chain(near, far, microbatches):
    op_graph = training(fan(near, far, 4, chunks=(1, 1, 3)), microbatches)
    schedule, bounds = interleaved(op_graph), interleaved_in_flight(op_graph)
    check_schedule(schedule, bounds)
    assert 1 + max(op_slots(schedule).values()) <= 2 * (3 * microbatches + 4 - 1 + far + 1)
    # The way from a forward to its backward is two slots longer than on the chain: through the generator and back.
    assert [bounds["backbone", rank] for rank in range(4)] == [17, 15, 13, 11]
    # The backbone needs two groups and a bit at once, not one microbatch for each of its twelve stages.
    assert bounds["near", near - 1] == bounds["far", far - 1] == 10 and bounds["paint", 0] == 1


def test_evaluation_fills_and_drains_once():
    graph = ring(4, 3)
    schedule = forward_only(graph, 8)
    assert 1 + max(op_slots(schedule).values()) == 3 * 8 + 4 - 1


def test_chunks_before_the_first_that_trains_have_no_backward():
    graph = ring(2, 3)
    trains = frozenset([("unit", 3)])
    op_graph = OpGraph(
        stage_graph=graph, microbatches=4, backward_stages=graph.with_descendants(trains), trained_stages=trains
    )
    schedule = interleaved(op_graph)
    check_schedule(schedule, interleaved_in_flight(op_graph))
    counts = collections.Counter((kind, stage) for kind, stage, _ in run_by(schedule, graph.stages))
    assert {stage for kind, stage in counts if kind == "backward"} == {3, 4, 5} and set(counts.values()) == {4}


@pytest.mark.parametrize(("policy", "bounds"), [(gpipe, gpipe_in_flight), (one_f_one_b, one_f_one_b_in_flight)])
def test_the_other_policies_take_chunks_too(policy, bounds):
    op_graph = training(ring(3, 2), 7)
    schedule = policy(op_graph)
    check_schedule(schedule, bounds(op_graph))
    kinds = [kind for kind, _, _ in run_by(schedule, op_graph.stage_graph.stages_of["unit", 0])]
    assert (kinds == ["forward"] * 14 + ["backward"] * 14) == (policy is gpipe)


def test_the_oldest_microbatch_may_exceed_a_limit_that_would_deadlock():
    op_graph = training(ring(2, 3), 6)
    tight = {("unit", 0): 1, ("unit", 1): 1}
    schedule = list_schedule(op_graph, tight, priority=lambda op: (op.microbatch, op.kind != "backward"))
    check_schedule(schedule, tight)
    for stage_ids in op_graph.stage_graph.stages_of.values():
        steps = [1 if kind == "forward" else -1 for kind, _, _ in run_by(schedule, stage_ids)]
        assert max(itertools.accumulate(steps)) == len(stage_ids) == 3


SPEED = """
import time
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.plans.parallelism import Parallelism
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.schedules.named.build import build_schedule
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph

modules = ModuleGraph((ModuleSpec("vision", 24), ModuleSpec("backbone", 96, ("vision",))))
cut = Parallelism(dp=48, tp=8, chunks=12)
backbone = UnitPlan("backbone", ("backbone",), tuple(range(3072)), layers=(1,) * 96, parallelism=cut)
vision = UnitPlan("vision", ("vision",), tuple(range(3072, 3120)), layers=(24,), parallelism=Parallelism(dp=48))
plan = Plan((vision, backbone), microbatches=32, schedule="interleaved")
start = time.process_time()
resolved = ResolvedPlan(plan, modules)
schedule = build_schedule(resolved, frozenset(resolved.stages.stages))
print(sum(op.kind == "forward" for op in schedule.ops), time.process_time() - start)
"""


@pytest.mark.processes
def test_three_thousand_devices_are_scheduled_in_seconds():
    """Runs in a process of its own, without type checks at run time."""
    ran = subprocess.run([sys.executable, "-c", SPEED], capture_output=True, text=True, check=True)
    forwards, seconds = ran.stdout.split()
    assert int(forwards) == 97 * 32 and float(seconds) < 20  # 0.3 s where nothing else runs
