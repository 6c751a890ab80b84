"""Encoders in the bubbles of a backbone: valid orders, never longer than interleaved 1F1B, the same everywhere."""

from hypothesis import given, settings

from sharding.schedules.checks import check_schedule
from sharding.schedules.colocated import (
    coarse_colocated,
    coarse_colocated_in_flight,
    colocated,
    colocated_in_flight,
)
from sharding.schedules.interleaved_1f1b import interleaved
from sharding.schedules.pass_seconds import pass_seconds
from tests.sharding.colocated_steps import colocated_op_graph, colocated_recipes


@given(recipe=colocated_recipes())
@settings(max_examples=100, deadline=None)
def test_every_order_is_valid_and_none_is_longer_than_interleaved(recipe):
    op_graph = colocated_op_graph(*recipe)
    schedule, coarse = colocated(op_graph), coarse_colocated(op_graph)
    check_schedule(schedule, colocated_in_flight(op_graph))
    check_schedule(coarse, coarse_colocated_in_flight(op_graph))
    seconds = pass_seconds(schedule)
    assert seconds <= pass_seconds(interleaved(op_graph)) * (1 + 1e-9)
    assert seconds <= pass_seconds(coarse) * (1 + 1e-9)
