import collections
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.clusters import Link
from sharding.costs.cost_model import collective_seconds, ring_seconds
from sharding.costs.node_placement import NodePlacement, parameter_ranks

SIZES = st.sampled_from([1, 2, 3, 4])
FAST, SLOW = Link(300e9, 3e-6), Link(25e9, 1e-5)


@given(
    st.integers(0, 20), SIZES, SIZES, SIZES, st.sampled_from([1, 2]), SIZES, st.sampled_from([4, 8, 72]), st.booleans()
)
def test_ranks_are_counted_on_the_nodes_of_their_devices(first, groups, cp, tp, ep, parts, per_node, gap):
    fsdp = parts * ep if parts > 1 else 1
    dp = groups * ep * parts
    devices = [first + number + (5 * (number > 2) if gap else 0) for number in range(dp * cp * tp)]
    placement = parameter_ranks(devices, per_node, dp=dp, cp=cp, tp=tp, ep=ep, fsdp=fsdp)
    ranks = list(itertools.product(range(dp), range(cp), range(tp)))
    node_of = {rank: device // per_node for rank, device in zip(ranks, devices, strict=True)}

    def farthest_apart(key) -> NodePlacement:
        """Of the groups of ranks that have the same key."""
        groups = collections.defaultdict(list)
        for rank in ranks:
            groups[key(*rank)].append(node_of[rank])
        counts = [collections.Counter(nodes).values() for nodes in groups.values()]
        placed = [NodePlacement(sum(count), len(count), min(count), max(count)) for count in counts]
        return max(placed, key=lambda place: (place.nodes, -place.fewest, place.most))

    if fsdp == 1:
        assert placement.same == (farthest_apart(lambda d, _, t: t), farthest_apart(lambda d, _, t: (d % ep, t)))
        assert {part.ranks for part in placement.parts} == {1}
    else:
        shards = farthest_apart(lambda d, _, t: (d % fsdp, t))
        assert placement.same == (shards, shards)
        expert_placement = farthest_apart(lambda d, c, t: (d // fsdp, d % ep, c, t))
        assert placement.parts == (farthest_apart(lambda d, c, t: (d // fsdp, c, t)), expert_placement)


def test_a_collective_on_one_node_or_with_one_rank_a_node_is_one_ring():
    size = np.asarray(1e9)
    assert collective_seconds(1e9, NodePlacement.on_one_node(8), FAST, SLOW) == ring_seconds(size, 8, FAST)
    assert collective_seconds(1e9, NodePlacement(6, 6), FAST, SLOW) == ring_seconds(size, 6, SLOW)
    assert collective_seconds(1e9, NodePlacement(1), FAST, SLOW) == 0


def test_every_rank_of_a_node_has_a_network_card():
    """16 ranks on 2 nodes: each sends an eighth of the array's half to the other node, then 7/8 of it inside."""
    seconds = collective_seconds(1.6e9, NodePlacement(16, 2, 8, 8), FAST, SLOW)
    assert seconds == pytest.approx(1e-5 + 1.6e9 / 8 / 2 / 25e9 + 7 * (3e-6 + 1.6e9 / 8 / 300e9))


@given(st.integers(2, 9), st.integers(1, 8), st.floats(1e3, 1e11))
def test_no_card_and_no_link_sends_faster_than_it_can(nodes, per_node, size):
    """Whatever the algorithm, a node receives all that it lacks by its cards, and a device by its link or card."""
    placed = NodePlacement(nodes * per_node, nodes, per_node, per_node)
    seconds = collective_seconds(size, placed, FAST, SLOW)
    assert seconds >= size * (nodes - 1) / nodes / (per_node * SLOW.bandwidth)
    assert seconds >= size * (1 - 1 / placed.ranks) / (FAST.bandwidth + SLOW.bandwidth)
    assert seconds <= ring_seconds(np.asarray(size), placed.ranks, SLOW) * (1 + 1e-9)
