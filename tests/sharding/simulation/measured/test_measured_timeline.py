"""Timelines from measured moments: those of a simulated step give its timeline; launches and late threads move ops."""

import itertools

import numpy as np
from hypothesis import given, settings

from sharding.simulation.measured.measured_timeline import measured_timeline, replica_count
from tests.sharding.steps import SimulatedStep, build_step, step_recipes


def measured(step: SimulatedStep, launched, finished, rendezvous=False):
    counts = {
        op: replica_count(step.devices, op, step.op_graph.stage_graph.pipeline_replicas) for op in step.schedule.ops
    }
    begins = {op: np.full(count, launched.get(op, 0.0)) for op, count in counts.items()}
    return measured_timeline(step.devices, step.schedule, begins, finished, rendezvous)


@settings(max_examples=25, deadline=None)
@given(step_recipes())
def test_the_ends_of_a_simulated_step_give_its_timeline(recipe):
    step = build_step(recipe)
    for rendezvous in (False, True):
        simulated = step.run(rendezvous)
        repeated = measured(step, {}, {span.op: span.end for span in simulated.spans}, rendezvous)
        for span, again in zip(simulated.spans, repeated.spans, strict=True):
            assert again.op == span.op and not again.communication.any()
            np.testing.assert_array_equal([again.start, again.end], [span.start, span.end], err_msg=str(span.op))


@settings(max_examples=15, deadline=None)
@given(step_recipes())
def test_an_op_starts_no_earlier_than_its_launch_and_ends_no_earlier_than_it_starts(recipe):
    step = build_step(recipe)
    launched = {op: number / 8 for number, op in enumerate(step.schedule.ops)}
    pipeline_replicas = step.op_graph.stage_graph.pipeline_replicas
    unknown = {op: np.full(replica_count(step.devices, op, pipeline_replicas), np.nan) for op in step.schedule.ops}
    timeline = measured(step, launched, unknown)
    before = {op: first for first, op in itertools.pairwise(step.schedule.ops)}
    for span in timeline.spans:  # launched one after another, and each takes no time
        first = before[span.op] if span.op in step.schedule.bundled else span.op
        assert (span.start == launched[first]).all() and (span.end == span.start).all()
    assert timeline.step == (len(step.schedule.ops) - 1) / 8 and timeline.busy == 0
