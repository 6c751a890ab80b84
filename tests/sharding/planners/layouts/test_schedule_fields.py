"""What planned plans tell their schedule: microbatches that fit the memory that is left, and the seconds of stages."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.planners.layouts.layout_search import search_layouts
from sharding.planners.layouts.placement import plan_of_layout
from sharding.planners.layouts.schedule_fields import MOST_EXTRA, extra_microbatches, scheduled_plan
from sharding.schedules.in_flight import InFlightMicrobatches
from sharding.schedules.named.build import in_flight_limits
from tests.sharding.planners.problems import build_problem, problem, recipes, uniform


@given(st.floats(1e6, 3e7), st.sampled_from([1, 2]), st.integers(1, 4), st.integers(0, 3), st.booleans())
@settings(max_examples=25, deadline=None)
def test_spare_microbatches_fit_and_one_more_does_not(memory, chunks, dp, downstream, uneven):
    case = problem(chunks=(chunks,), spread=0.4 if uneven else 0.0)
    for table in case.module_tables.values():
        for candidate in range(len(table.tp)):
            one, step = np.array([candidate]), 2 if table.chunks[candidate] > 1 else 1
            spare = table.spare_in_flight(candidate, 1.0, dp, memory, float(downstream))
            static = table.static_bytes(one, np.array([1]), np.array([dp]))[0]
            for count, fits, slack in ((spare, True, 1 + 1e-9), (spare + 1, False, 1.0)):
                rows = table.in_flight[one][0] + downstream * step + count
                if rows.min() < 0:
                    continue  # not even one microbatch has room
                held = static + table.saved.select(one).upper_bound(rows[None])[0]
                assert (held <= memory * slack).all() == fits


@given(recipes())
@settings(max_examples=8, deadline=None)
def test_more_in_flight_still_fits_where_rows_are_equal(recipe):
    """Apart from the oldest microbatch, which may come on top.

    Left out are items that are dealt, whose buffers the planner does not know, and chunks, of whose microbatches in
    flight it knows the sum: a plan that is simulated and does not fit is not taken (`best_simulated`).
    """
    case = uniform(build_problem(recipe))
    for layout in search_layouts(case, 3):
        extra = extra_microbatches(case, layout)
        assert all(0 <= count <= MOST_EXTRA * max(case.chunk_choices) for count in extra.values())
        plan = scheduled_plan(case, layout)
        if any(choice.dealt for choice in layout.choices.values()) or any(
            unit.parallelism.chunks > 1 for unit in plan.units
        ):
            continue
        timeline, stages = case.simulate(plan), case.step_costs(plan).stages
        above = above_limits(plan, timeline)
        for lane in timeline.lanes:
            on_top = above[lane.rank] * max(float(stages[stage].saved_bytes.max()) for stage in lane.stages)
            assert timeline.lane_peak_memory(lane) <= case.cluster.usable_memory * (1 + 1e-9) + on_top


def above_limits(plan, timeline):
    """By pipeline rank, how many microbatches it holds at most beyond its limit."""
    limits, held = in_flight_limits(plan, timeline.op_graph), InFlightMicrobatches(timeline.op_graph)
    above = dict.fromkeys(limits, 0)
    for span in timeline.spans:
        held.record(span.op)
        above = {rank: max(count, held[rank] - limits[rank]) for rank, count in above.items()}
    assert max(above.values()) <= 1
    return above


def test_memory_and_microbatches_limit_what_is_in_flight():
    case = uniform(problem(rows=8, devices=4))
    (layout,) = search_layouts(case)
    plain, more = plan_of_layout(case, layout), scheduled_plan(case, layout)
    extra = {unit.name: unit.schedule_hints.extra_microbatches for unit in more.units}
    count = min(MOST_EXTRA, layout.microbatches - 1)
    most = plain.unit_of("backbone").pp  # with a generator behind it, one stage more than the backbone has, less one
    assert count > most >= 1 and extra == {"vision": count, "backbone": most, "generator": 0}
    timelines = [case.simulate(plan) for plan in (plain, more)]
    peaks = [max(timeline.lane_peak_memory(lane) for lane in timeline.lanes[:2]) for timeline in timelines]
    assert peaks[0] < peaks[1]
    tight = dataclasses.replace(
        case, cluster=dataclasses.replace(case.cluster, memory=peaks[0] / case.cluster.allocator_share)
    )
    assert not any(extra_microbatches(tight, layout).values())


def test_plans_with_chunks_have_the_mean_seconds_of_their_stages():
    case = uniform(problem(chunks=(1, 2), devices=6, rows=8))
    with_chunks = 0
    for layout in search_layouts(case, 20):
        plan = scheduled_plan(case, layout)
        if plan.schedule != "interleaved":
            assert not any(unit.schedule_hints.forward_seconds for unit in plan.units)
            continue
        with_chunks += 1
        stages = case.step_costs(plan).stages
        for unit, (key, kind) in itertools.product(
            plan.units, (("forward_seconds", "forward"), ("backward_seconds", "backward"))
        ):
            means = [float(np.mean(getattr(stages[unit.name, number], kind))) for number in range(unit.stage_count)]
            assert getattr(unit.schedule_hints, key) == pytest.approx(means, rel=5e-3)
    assert with_chunks
