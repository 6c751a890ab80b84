"""Which nodes rows share, and rows of a phase near the rows of the batch that their items belong to."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.packing.phases.row_nodes import rows_near_their_items, shared_nodes
from tests.unit_plans import flat_unit


def crossing(lengths, phase_rows, batch_rows, rows, nodes):
    phase_count, batch_count = rows
    return int(lengths[phase_rows * nodes // phase_count != batch_rows * nodes // batch_count].sum())


@given(
    st.sampled_from([(4, 4, 2), (4, 8, 4), (6, 3, 3), (8, 4, 2)]),
    st.lists(st.integers(1, 9), max_size=20),
    st.integers(0, 9),
)
def test_whole_rows_change_places_and_no_more_crosses(shape, lengths, seed):
    *rows, nodes = shape
    random, lengths = np.random.default_rng(seed), np.array(lengths, np.int64)
    dealt, batch_rows = (random.integers(0, count, len(lengths)) for count in rows)
    near = rows_near_their_items(lengths, dealt, batch_rows, tuple(rows), nodes)
    assert len({*zip(dealt.tolist(), near.tolist(), strict=True)}) == len({*dealt.tolist()}) == len({*near.tolist()})
    assert crossing(lengths, near, batch_rows, rows, nodes) <= crossing(lengths, dealt, batch_rows, rows, nodes)


def test_rows_whose_items_are_of_one_node_lie_there():
    batch_rows = np.repeat(np.arange(4), 3)
    for order in itertools.permutations(range(4)):
        near = rows_near_their_items(np.arange(1, 13), np.array(order)[batch_rows], batch_rows, (4, 4), 4)
        assert near.tolist() == batch_rows.tolist()


@pytest.mark.parametrize(
    ("devices", "phase", "backbone", "nodes"),
    [
        (range(8), {"dp": 8, "phase_rows": 8}, {"dp": 4, "tp": 2}, 4),
        (range(8), {"dp": 4, "tp": 2, "phase_rows": 12}, {"dp": 8}, 4),
        (range(8, 16), {"dp": 8, "phase_rows": 8}, {"dp": 8}, 1),  # other nodes
        (range(8), {"dp": 8, "phase_rows": 8}, {"dp": 2, "tp": 4}, 1),  # a replica of the backbone on two nodes
        (range(2), {"dp": 2, "phase_rows": 2}, {"dp": 2, "tp": 4}, 1),
        ((0, 2, 4, 6, 1, 3, 5, 7), {"dp": 4, "pipeline_replicas": 2, "phase_rows": 8}, {"dp": 4, "tp": 2}, 4),
        (
            (0, 2, 4, 6, 3, 1, 5, 7),
            {"dp": 4, "pipeline_replicas": 2, "phase_rows": 8},
            {"dp": 4, "tp": 2},
            1,
        ),  # another order in one
        (range(8), {"dp": 4, "pipeline_replicas": 2, "phase_rows": 8}, {"dp": 4, "pipeline_replicas": 2}, 2),
        (
            range(8),
            {"dp": 4, "pipeline_replicas": 2, "phase_rows": 8},
            {"dp": 4, "pipeline_replicas": 2, "replica_of_microbatch": (1, 0)},
            1,
        ),
    ],
)
def test_nodes_are_shared_if_both_are_divided_over_them_in_order(devices, phase, backbone, nodes):
    vision = flat_unit("vision", ("vision",), tuple(devices), **phase)
    other = flat_unit("backbone", ("backbone",), tuple(range(8)), **backbone)
    assert shared_nodes(vision, other, 0, rows=8, microbatches=2, devices_per_node=2) == nodes
    assert shared_nodes(vision, other, 0, rows=8, microbatches=2, devices_per_node=16) == 1
