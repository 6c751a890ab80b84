"""Computing the tokens of all ranks by experts that are split over ranks: two forms with the same results.

By an all-gather, every rank computes its own experts' sums for every token, and a reduce-scatter adds them up. By an
all-to-all, a token is sent once to each rank that holds any of its experts, and the outputs of these ranks come back to
be added up. `sharding.expert_transfer` says which of them moves less. `experts.py` calls both.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.ragged_all_to_all import exchange_rows
from sharding.expert_transfer import ExpertTransfer

LocalSum = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""(tokens `[n, d]`, experts `[n, k]`, weights `[n, k]`) -> `[n, d]`, the weighted sums of a rank's own experts.

Experts are numbered from the rank's first; numbers outside its range belong to other ranks.
"""

ExpertSum = Callable[
    [LocalSum, Float[Array, "n d"], Int[Array, "n k"], Float[Array, "n k"], int, tuple[str, ...]], Float[Array, "n d"]
]


def sum_by_gather(
    local_sum: LocalSum,
    x: Float[Array, "n d"],
    experts: Int[Array, "n k"],
    weights: Float[Array, "n k"],
    local_experts: int,
    axes: tuple[str, ...],
) -> Float[Array, "n d"]:
    """The weighted sums of every token's experts: all-gather of tokens, local experts, reduce-scatter of sums.

    Args:
        local_sum: Computes the weighted sums of this rank's experts.
        x: This rank's tokens.
        experts: The experts chosen for each token.
        weights: The weights of the chosen experts.
        local_experts: Number of experts of each rank.
        axes: The mesh axes of the expert ranks.
    """
    x, experts, weights = (lax.all_gather(local, axes, tiled=True) for local in (x, experts, weights))
    y = local_sum(x, experts - lax.axis_index(axes) * local_experts, weights)  # [ranks n, d]
    return lax.psum_scatter(y, axes, tiled=True)


def sum_by_all_to_all(
    local_sum: LocalSum,
    x: Float[Array, "n d"],
    experts: Int[Array, "n k"],
    weights: Float[Array, "n k"],
    local_experts: int,
    axes: tuple[str, ...],
) -> Float[Array, "n d"]:
    """As `sum_by_gather`, with the same arguments, by two all-to-alls that send only rows with tokens.

    No token is dropped: there is room for the tokens of all ranks. The sums of the ranks for a token are added in the
    order of the ranks.
    """
    tokens, top_k = experts.shape
    ranks = lax.axis_size(axes)
    targets = target_ranks(experts // local_experts, ranks)  # [n, c]
    copies = targets.shape[1]
    order = jnp.argsort(targets.reshape(-1))  # [n c], stable: by rank, then by token; then copies that go nowhere
    send_sizes = jnp.bincount(targets.reshape(-1), length=ranks + 1)[:ranks]
    sizes = lax.all_gather(send_sizes, axes)  # [ranks, ranks]

    def dispatch(rows: Float[Array, "n w"]) -> Float[Array, "m w"]:
        """Sends rows to their ranks; returns the rows that all ranks send here, by rank, then zeros; m = ranks n."""
        sent = permute_rows(jnp.repeat(rows, copies, axis=0), order)
        return exchange_rows(sent, sizes, rows=ranks * tokens, axis=axes)

    # Experts travel beside their weights, as float32: exact below 2^24. A row of zeros has no expert.
    routing = dispatch(jnp.concatenate([(experts + 1).astype(weights.dtype), weights], axis=1))  # [m, 2 k]
    chosen = routing[:, :top_k].astype(experts.dtype) - 1 - lax.axis_index(axes) * local_experts
    y = local_sum(dispatch(x), chosen, routing[:, top_k:])  # [m, d]
    returned = exchange_rows(y, sizes.T, rows=tokens * copies, axis=axes)  # [n c, d], in the order of sending
    return jnp.sum(permute_rows(returned, jnp.argsort(order)).reshape(tokens, copies, -1), axis=1)


EXPERT_SUMS: dict[ExpertTransfer, ExpertSum] = {"gather": sum_by_gather, "all_to_all": sum_by_all_to_all}


def target_ranks(rank_of_expert: Int[Array, "n k"], ranks: int) -> Int[Array, "n c"]:
    """Returns the ranks that hold any of a token's experts, ascending and each once; `ranks` where there are no more.

    Args:
        rank_of_expert: The rank that holds each chosen expert.
        ranks: Number of ranks; c is the most that a token can need.
    """
    ascending = jnp.sort(rank_of_expert, axis=1)
    is_repeated = jnp.concatenate([jnp.zeros_like(ascending[:, :1], bool), ascending[:, 1:] == ascending[:, :-1]], 1)
    return jnp.sort(jnp.where(is_repeated, ranks, ascending), axis=1)[:, : min(ranks, ascending.shape[1])]


def permute_rows(x: Float[Array, "n d"], order: Int[Array, " m"]) -> Float[Array, "m d"]:
    """Takes the rows of these numbers, which are all different.

    XLA is told that no row is read twice, so that the gradient is a permutation and not a sum: the order of a sum of
    atomic additions on a GPU would change from run to run.
    """
    return x.at[order].get(unique_indices=True, mode="promise_in_bounds")
