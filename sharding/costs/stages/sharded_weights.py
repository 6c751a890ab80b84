"""Collectives of fully sharded layers whenever these compute, and how much of them computation does not hide.

A layer's weights are gathered while the layer before it computes, in the forward and again in the backward, and its
gradients are scattered in float32 while the next computes (arXiv 1910.02054, stage 3; arXiv 2304.11277, section 3.3).
The first layer of a pass has nothing before it, and the last nothing after it. Computation and collectives slow each
other (`CostEffects`).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from configs.cost_effects import CostEffects
from sharding.costs.concurrency import exposed_seconds
from sharding.costs.cost_model import CostModel, Times
from sharding.costs.memory import GRADIENT_BYTES
from sharding.costs.node_placement import NodePlacement
from sharding.costs.stages.stage_parameters import LayersOfStage
from sharding.costs.step_costs import ShardedPasses


class WeightExchange(NamedTuple):
    """Seconds of one layer's collectives.

    Attributes:
        gather: Gathering its weights in a forward.
        scatter: Summing and scattering its gradients; 0 for a frozen layer.
        gather_again: Gathering its weights in a backward; 0 where the weights that the forward gathered are kept.
    """

    gather: float
    scatter: float
    gather_again: float


NO_EXCHANGE = WeightExchange(0.0, 0.0, 0.0)
"""The collectives of a layer whose weights every replica has whole: none."""


def weight_exchange(run: LayersOfStage, parts: tuple[NodePlacement, NodePlacement], costs: CostModel) -> WeightExchange:
    """Seconds of the collectives of one of some equal layers.

    Args:
        run: The layers.
        parts: The ranks that divide parameters, all but experts' and experts' (`ParameterRanks.parts`).
        costs: Gives seconds of collectives.
    """
    sizes = _parameters(run)
    pairs = [(size, ranks) for size, ranks in zip(sizes, parts, strict=True) if size and ranks.ranks > 1]
    gather = sum((costs.gather_weights(*pair) for pair in pairs), start=0.0)
    trains = "wgrad" in run.gradients
    scatter = sum((costs.reduce_gradients(*pair) for pair in pairs if trains), start=0.0)
    return WeightExchange(gather, scatter, gather)


def gathered_bytes(run: LayersOfStage, costs: CostModel) -> float:
    """Bytes of whole weights and gradients at a time: two layers' weights, one's gradients, also in float32."""
    if run.ranks.fsdp == 1:
        return 0.0
    gradients = costs.element_bytes + GRADIENT_BYTES if "wgrad" in run.gradients else 0
    return sum(_parameters(run)) * (2 * costs.element_bytes + gradients)


def exposed(
    exchange: WeightExchange,
    passes: Float[np.ndarray, "2 ..."],
    count: int,
    effects: CostEffects,
    *,
    is_first: bool,
    is_last: bool,
) -> Float[np.ndarray, "2 ..."]:
    """`exposed_in_forward` and `exposed_in_backward` of `count` equal layers.

    Args:
        exchange: Collectives of one layer.
        passes: Seconds of one layer's forward, and of its backward; 0 where there is nothing to compute.
        count: Number of the layers.
        effects: The slowdowns of computation and collectives beside each other.
        is_first, is_last: Whether the stage begins or ends with them.
    """
    forward, backward = passes
    return np.stack(
        [
            exposed_in_forward(exchange, forward, count, effects, is_first),
            exposed_in_backward(exchange, backward, count, effects, is_first, is_last),
        ]
    )


def exposed_in_forward(
    exchange: WeightExchange, compute: Times, count: int, effects: CostEffects, is_first: bool
) -> Times:
    """Seconds in which a device waits for weights in the forwards of `count` equal layers.

        count * exposed(gather beside compute), and the first layer of the stage waits for its whole gather

    Args:
        exchange: Collectives of one layer.
        compute: Seconds of one layer's forward; 0 where there is nothing to compute.
        count: Number of the layers.
        effects: The slowdowns of computation and collectives beside each other.
        is_first: Whether the stage begins with them.
    """
    each = exposed_seconds(compute, exchange.gather, effects)
    waiting = count * each
    if is_first:
        waiting = waiting + exchange.gather - each
    return np.where(compute > 0, waiting, 0.0)


def exposed_in_backward(
    exchange: WeightExchange, compute: Times, count: int, effects: CostEffects, is_first: bool, is_last: bool
) -> Times:
    """Seconds in which a device waits for weights or gradients in the backwards of `count` equal layers.

        count * exposed(gather_again + scatter beside compute), the whole gather_again of the stage's last layer,
        the whole scatter of its first

    Args:
        exchange: Collectives of one layer.
        compute: Seconds of one layer's backward; 0 where there is none.
        count: Number of the layers.
        effects: The slowdowns of computation and collectives beside each other.
        is_first: Whether the stage begins with them.
        is_last: Whether it ends with them.
    """
    collectives = exchange.gather_again + exchange.scatter
    each = exposed_seconds(compute, collectives, effects)
    hidden = collectives - each  # of one layer
    alone = is_last * exchange.gather_again + is_first * exchange.scatter
    return np.where(compute > 0, count * each + np.minimum(alone, hidden), 0.0)


def sharded_passes(
    exchange: WeightExchange, forward: Times, backward: Times, waits: Float[np.ndarray, "2 ..."], count: int
) -> ShardedPasses:
    """Seconds of collectives and computation of `count` equal layers for a mean microbatch.

    Args:
        exchange: Collectives of one layer.
        forward: Seconds of one layer's forward of each microbatch; 0 where there is nothing to compute or to gather.
        backward: Seconds of one layer's backward of each microbatch, likewise.
        waits: The `exposed` seconds of both.
        count: Number of the layers.
    """
    forwards, backwards = (float(np.mean(np.asarray(seconds) > 0)) for seconds in (forward, backward))
    return ShardedPasses(
        gather=count * forwards * exchange.gather,
        gather_again=count * backwards * exchange.gather_again,
        scatter=count * backwards * exchange.scatter,
        forward=count * float(np.mean(forward)),
        backward=count * float(np.mean(backward)),
        exposed_forward=float(np.mean(waits[0])),
        exposed_backward=float(np.mean(waits[1])),
    )


def _parameters(run: LayersOfStage) -> tuple[float, float]:
    """Elements of one layer that a tensor rank computes with: (all but experts', its experts')."""
    layer, ranks = run.layer, run.ranks
    return layer.parameters_per_rank(ranks.tp), layer.expert_parameters_per_rank(ranks.tp, ranks.ep)
