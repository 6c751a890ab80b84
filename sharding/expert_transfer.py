"""How tokens get to the ranks that hold their experts, and back: the traffic of each form, and the cheaper form.

An all-gather brings every token to every expert rank, and a reduce-scatter brings the sums back. An all-to-all sends a
token only to the ranks that hold at least one of its experts, once to each.
"""

import fractions
import functools
import math
from typing import Literal, NamedTuple

ExpertTransfer = Literal["gather", "all_to_all"]
ExpertTransferChoice = Literal["auto", "gather", "all_to_all"]
"""The values of `Parallelism.expert_transfer`: a form of the transfer, or whichever is cheaper."""


class Routing(NamedTuple):
    """The experts of a layer, and how many of them a router chooses for each token.

    Attributes:
        experts: Number E of experts, which the ranks divide evenly.
        top_k: Experts k of each token.
    """

    experts: int
    top_k: int

    def pairs_per_token(self, ranks: int) -> int:
        """The most of a token's experts that one rank can hold."""
        return min(self.top_k, self.experts // ranks)

    def most_ranks(self, ranks: int) -> int:
        """The most ranks that a token can be sent to."""
        return min(self.top_k, ranks)

    def chance_of_rank(self, ranks: int) -> fractions.Fraction:
        """Probability that a rank holds at least one of a token's experts, where every choice is equally likely.

        1 - C(E - E / ranks, k) / C(E, k)
        """
        others = self.experts - self.experts // ranks
        return 1 - fractions.Fraction(math.comb(others, self.top_k), math.comb(self.experts, self.top_k))


class TokensMoved(NamedTuple):
    """Tokens that one rank receives before the experts, and sends after them, in units of one rank's tokens.

    Attributes:
        between: Tokens from ranks of other nodes, through one device's network card.
        inside: Tokens from ranks of its own node.
    """

    between: fractions.Fraction
    inside: fractions.Fraction


def ranks_of_node(ranks: int, nodes: int) -> int:
    """The most ranks that a node has."""
    return -(-ranks // nodes)


def tokens_gathered(ranks: int, nodes: int) -> TokensMoved:
    """Traffic of an all-gather: every token enters a node once, by one of its cards, and is then handed round."""
    together = ranks_of_node(ranks, nodes)
    return TokensMoved(fractions.Fraction(nodes - 1), fractions.Fraction((together - 1) * nodes))


@functools.cache
def tokens_exchanged(routing: Routing, ranks: int, nodes: int) -> TokensMoved:
    """Expected traffic of the all-to-all: a token enters a node once for each rank there that it needs."""
    together, chance = ranks_of_node(ranks, nodes), routing.chance_of_rank(ranks)
    return TokensMoved(chance * (ranks - together), chance * (together - 1))


def chosen_transfer(choice: ExpertTransferChoice, routing: Routing, ranks: int, nodes: int) -> ExpertTransfer:
    """Returns the form that a plan's choice means; the other arguments are as in `cheaper_transfer`."""
    return cheaper_transfer(routing, ranks, nodes) if choice == "auto" else choice


@functools.cache
def cheaper_transfer(routing: Routing, ranks: int, nodes: int) -> ExpertTransfer:
    """The form that moves less between nodes, whose links are the slowest; of two that move as much, less inside one.

    Inside a node, the share of its own tokens that a rank keeps counts against the all-to-all, although no link carries
    it: these tokens too are put in order before the op and copied by it. So two ranks of one node always gather.

    Args:
        routing: The router.
        ranks: Expert ranks.
        nodes: Nodes that they are on, evenly.
    """
    gathered, exchanged = tokens_gathered(ranks, nodes), tokens_exchanged(routing, ranks, nodes)
    kept = routing.chance_of_rank(ranks)
    return "all_to_all" if (exchanged.between, exchanged.inside + kept) < gathered else "gather"
