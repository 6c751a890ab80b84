import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from mmjax.training.heartbeat.op_stragglers import FACTOR, SHARE, RecordedStep, find_slow_op
from sharding.schedules.ops import GLOBAL_NORM
from sharding.simulation.measured.measured_timeline import replicas_that_finish
from sharding.simulation.op_spans.spans import Span
from tests.sharding.steps import build_step, step_recipes


def longer(timeline, op, replica: int, seconds: float):
    """A timeline in which a replica takes so much longer for one op."""

    def change(span: Span) -> Span:
        if span.op != op:
            return span
        end = np.array(span.end)
        end[replica] += seconds
        return dataclasses.replace(span, end=end)

    return dataclasses.replace(timeline, spans=tuple(change(span) for span in timeline.spans))


def find(earlier, later, before=None, after=None):
    """The slow op between two timelines with these capacities."""
    return find_slow_op(RecordedStep(5, earlier, before or {}), RecordedStep(1005, later, after or {}))


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(step_recipes(), strategies.floats(0.0, 3.0), strategies.data())
def test_the_op_that_has_become_slower_is_found(recipe, share, data):
    earlier = build_step(recipe).run(False)
    assert find(earlier, earlier) is None
    span = data.draw(strategies.sampled_from([span for span in earlier.spans if span.op != GLOBAL_NORM]))
    replica = data.draw(strategies.integers(0, len(span.end) - 1))
    pipelines = earlier.op_graph.stage_graph.pipeline_replicas
    replicas = replicas_that_finish(earlier.devices, span.op, pipelines)
    same = [
        other
        for other in earlier.spans
        if other.op._replace(microbatch=span.op.microbatch) == span.op
        and replicas_that_finish(earlier.devices, other.op, pipelines) == replicas
    ]
    before = float(sum(other.own_seconds[replica] for other in same))
    later = longer(earlier, span.op, replica, share * earlier.step)
    added = later.step * SHARE
    hypothesis.assume(abs(share * earlier.step - max(added, (FACTOR - 1) * before)) > 1e-6 * earlier.step)
    straggler = find(earlier, later)
    if share * earlier.step < max(added, (FACTOR - 1) * before):
        assert straggler is None
    else:
        assert straggler is not None and straggler.op == span.op._replace(microbatch=-1)
        assert straggler.devices == tuple(replicas[replica])
        np.testing.assert_allclose(
            [straggler.before, straggler.after], [before, before + share * earlier.step], rtol=1e-6
        )


@hypothesis.settings(max_examples=5, deadline=None)
@hypothesis.given(step_recipes())
def test_the_norm_ends_with_the_slowest_device_and_is_not_blamed(recipe):
    earlier = build_step(recipe).run(False)
    assert find(earlier, longer(earlier, GLOBAL_NORM, 0, 10 * earlier.step)) is None


@pytest.mark.parametrize("capacities", [(None, 0), (0, 1), (1, None), (None, None), (1, 1)])
@hypothesis.settings(max_examples=10, deadline=None)
@hypothesis.given(recipe=step_recipes(), data=strategies.data())
def test_only_microbatches_of_the_same_capacity_are_compared(capacities, recipe, data):
    earlier = build_step(recipe).run(False)
    op = data.draw(strategies.sampled_from([span.op for span in earlier.spans if span.op.microbatch >= 0]))
    unit = data.draw(strategies.sampled_from([unit for unit in (op.unit, op.target_unit) if unit]))
    before, after = (
        {unit: tuple(capacity if number == op.microbatch else 0 for number in range(earlier.op_graph.microbatches))}
        for capacity in capacities
    )
    later = longer(earlier, op, 0, 10 * earlier.step)
    straggler = find(earlier, later, before, after)
    if capacities == (1, 1):
        assert straggler is not None and straggler.op == op._replace(microbatch=-1)
    else:
        assert straggler is None
    # An op that runs once per step is compared whatever the capacities are.
    once = next(span.op for span in earlier.spans if span.op.kind == "gather")
    slow = find(earlier, longer(later, once, 0, 100 * earlier.step), before, after)
    assert slow is not None and slow.op == once
