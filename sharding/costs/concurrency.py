"""Computation beside transfers, and ranks beside each other: what of it takes longer than one of them alone.

The analytic cost model and the costs of fully sharded layers read this; magnitudes are those of `CostEffects`.
"""

import functools
import math

import numpy as np

from configs.cost_effects import CostEffects
from sharding.costs.cost_model import Times


def exposed_seconds(compute: Times, transfer: Times, effects: CostEffects) -> Times:
    """Seconds by which computation and a transfer that start together take longer than the computation alone.

    While both run, each takes its slowdown times as long (a of computation, b of the transfer); what is left of the
    longer one then runs alone:

        transfer - compute * (1 - a + a / b)    if the computation ends first: compute * a <= transfer * b
        transfer * b * (1 - 1 / a)              else

    Without slowdowns this is what the transfer takes longer than the computation.

    Args:
        compute: Seconds of the computation alone.
        transfer: Seconds of the transfer alone.
        effects: The slowdowns.
    """
    compute_slowdown, transfer_slowdown = effects.compute_slowdown, effects.transfer_slowdown
    computes_less = transfer - compute * (1 - compute_slowdown + compute_slowdown / transfer_slowdown)
    computes_more = transfer * transfer_slowdown * (1 - 1 / compute_slowdown)
    return np.where(compute * compute_slowdown <= transfer * transfer_slowdown, computes_less, computes_more)


@functools.lru_cache(maxsize=1024)
def expected_largest(ranks: int) -> float:
    """The expected largest of the absolute values of independent standard normal numbers.

        E = integral over x >= 0 of 1 - erf(x / sqrt(2))^ranks

    Args:
        ranks: How many numbers there are.
    """
    x = np.linspace(0.0, 10.0, 2001)
    below = np.array([math.erf(value / math.sqrt(2)) for value in x])
    return float(np.trapezoid(1 - below**ranks, x))
