"""The references of the balancing benchmark divide all items, and its rows are well formed."""

import json

import numpy as np

from benchmarks.balancing import postbalancing, references
from sharding.balancing.postbalancing.nodewise import SentItems


def test_references_divide_all_items():
    lengths = postbalancing.draw_lengths(120).tolist()
    for divide in (references.greedy, references.differencing, references.padded):
        batches = divide(lengths, 6)
        assert sorted(item for batch in batches for item in batch) == list(range(120))
    assert {len(batch) for batch in references.differencing(lengths, 6)} == {20}


def test_balancing_is_more_level_than_the_references():
    rows = postbalancing.balancing_rows(600, 10, 1.0)
    level = [row for row in rows if "max / mean" in row["name"]]
    assert len(level) == 2
    assert all(1 <= row["value"] <= row["reference"] for row in level)


def test_rows_are_plain_data():
    rows = postbalancing.padded_rows(300, 8) + postbalancing.large_cluster_rows(64)
    assert json.loads(json.dumps(rows)) == rows
    largest = rows[1]
    assert largest["value"] == largest["reference"] and largest["met"]


def test_the_node_wise_measure_counts_what_is_sent_to_other_nodes():
    items = SentItems(lengths=np.array([4, 6]), source=np.array([0, 8]), batch=np.array([8, 0]))
    assert postbalancing.worst_send_volume(items, np.arange(16)) == 6
    assert postbalancing.worst_send_volume(items, np.roll(np.arange(16), 8)) == 0
