"""What either transfer of tokens moves, against all routings there are, and against random ones."""

import fractions
import itertools
import math

import numpy as np
import pytest

from sharding.expert_transfer import Routing, cheaper_transfer, ranks_of_node, tokens_exchanged, tokens_gathered


def received(chosen, experts, ranks, nodes):
    """Tokens that rank 0 receives from (other nodes, its own), where each rank has one token with these experts."""
    mine = experts // ranks
    together = ranks // nodes
    sent = np.array([any(expert < mine for expert in token_experts) for token_experts in chosen])  # by source
    return int(sent[together:].sum()), int(sent[1:together].sum())


@pytest.mark.parametrize(("experts", "top_k"), [(4, 1), (4, 2), (4, 4), (8, 3), (12, 2)])
@pytest.mark.parametrize(("ranks", "nodes"), [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4)])
def test_the_all_to_all_moves_the_mean_over_all_routings(experts, top_k, ranks, nodes):
    routing = Routing(experts, top_k)
    routings = list(itertools.combinations(range(experts), top_k))
    moved = np.array([received([chosen] * ranks, experts, ranks, nodes) for chosen in routings]).sum(axis=0)
    assert tokens_exchanged(routing, ranks, nodes) == tuple(fractions.Fraction(int(n), len(routings)) for n in moved)
    held = [
        [sum(expert * ranks // experts == rank for expert in routed) for rank in range(ranks)] for routed in routings
    ]
    assert max(map(max, held)) == routing.pairs_per_token(ranks)
    assert max(sum(count > 0 for count in counts) for counts in held) == routing.most_ranks(ranks)


def test_the_all_to_all_moves_what_random_routings_do():
    random, routing, ranks, nodes, trials = np.random.default_rng(0), Routing(64, 6), 16, 2, 4000
    moved = np.array(
        [
            received([random.permutation(64)[:6] for _ in range(ranks)], routing.experts, ranks, nodes)
            for _ in range(trials)
        ]
    )
    expected = [float(count) for count in tokens_exchanged(routing, ranks, nodes)]
    deviation = np.sqrt(moved.var(axis=0) / trials)
    assert (np.abs(moved.mean(axis=0) - expected) < 4 * deviation).all()


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (8, 1), (8, 2), (8, 8), (12, 3)])
def test_an_all_gather_brings_every_token_to_every_rank_and_once_into_every_node(ranks, nodes):
    between, inside = tokens_gathered(ranks, nodes)
    together = ranks_of_node(ranks, nodes)
    assert between * together == (nodes - 1) * together  # tokens that enter a node, over all its cards
    # Each card's tokens, those from its own node and those that came through it, go to all others of the node.
    assert inside == (together - 1) * (1 + between)


@pytest.mark.parametrize(
    ("experts", "top_k", "ranks", "nodes", "expected"),
    [
        (8, 1, 1, 1, "gather"),
        (8, 1, 2, 1, "gather"),  # half of the other rank's tokens, and half of its own
        (8, 1, 4, 1, "all_to_all"),
        (8, 2, 8, 1, "all_to_all"),
        (8, 8, 4, 1, "gather"),  # every token everywhere
        (64, 6, 4, 1, "gather"),  # 2.5 tokens and 0.8 of its own, for 3
        (64, 6, 8, 1, "all_to_all"),
        (8, 2, 2, 2, "all_to_all"),  # 0.8 tokens between nodes for one
        (64, 6, 16, 2, "gather"),  # 2.7 tokens between nodes for one
        (64, 6, 64, 8, "all_to_all"),  # 5.2 for seven
        (64, 8, 64, 8, "all_to_all"),  # seven for seven, and less inside a node
    ],
)
def test_the_form_that_moves_less_between_nodes_and_then_inside_one_is_taken(experts, top_k, ranks, nodes, expected):
    assert cheaper_transfer(Routing(experts, top_k), ranks, nodes) == expected


def test_the_all_to_all_never_moves_more_inside_a_node():
    for experts, ranks, top_k in itertools.product((8, 16, 64), (2, 4, 8), (1, 2, 6, 8)):
        exchanged = tokens_exchanged(Routing(experts, top_k), ranks, 1)
        assert exchanged.between == 0 and exchanged.inside <= tokens_gathered(ranks, 1).inside
        share = 1 - math.comb(experts - experts // ranks, top_k) / math.comb(experts, top_k)
        assert float(exchanged.inside) == pytest.approx(share * (ranks - 1))
