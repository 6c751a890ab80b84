import dataclasses

import hypothesis
import numpy as np
from hypothesis import strategies

from mmjax.training.heartbeat.op_stragglers import FACTOR, SHARE, find_slow_op
from sharding.schedules.ops import NORM
from sharding.simulation.measured import replicas_that_finish
from sharding.simulation.spans import Span
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


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(step_recipes(), strategies.floats(0.0, 3.0), strategies.data())
def test_the_op_that_has_become_slower_is_found(recipe, share, data):
    earlier = build_step(recipe).run(False)
    assert find_slow_op(earlier, earlier) is None
    span = data.draw(strategies.sampled_from([span for span in earlier.spans if span.op != NORM]))
    replica = data.draw(strategies.integers(0, len(span.end) - 1))
    same = [other for other in earlier.spans if other.op._replace(microbatch=span.op.microbatch) == span.op]
    before = float(sum(other.seconds[replica] for other in same))
    later = longer(earlier, span.op, replica, share * earlier.step)
    added = later.step * SHARE
    hypothesis.assume(abs(share * earlier.step - max(added, (FACTOR - 1) * before)) > 1e-6 * earlier.step)
    found = find_slow_op(earlier, later)
    if share * earlier.step < max(added, (FACTOR - 1) * before):
        assert found is None
    else:
        assert found is not None and found.op == span.op._replace(microbatch=-1)
        assert found.devices == tuple(replicas_that_finish(earlier.devices, span.op)[replica])
        np.testing.assert_allclose([found.before, found.after], [before, before + share * earlier.step], rtol=1e-6)


@hypothesis.settings(max_examples=5, deadline=None)
@hypothesis.given(step_recipes())
def test_the_norm_ends_with_the_slowest_device_and_is_not_blamed(recipe):
    earlier = build_step(recipe).run(False)
    assert find_slow_op(earlier, longer(earlier, NORM, 0, 10 * earlier.step)) is None
