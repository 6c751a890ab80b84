"""Capacities of the rows of a phase: the few sizes with the least padding, from what microbatches need.

Planners choose the capacities of units with rows of their own here, and the report on a data set its advice.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from sharding.balancing.buckets import choose_buckets
from sharding.balancing.postbalancing.greedy import largest_first


def needed_capacity(lengths: Int[np.ndarray, " k"], rows: int) -> int:
    """Returns the capacity of rows in which items of these lengths fit, dealt longest first; 0 without items."""
    _, sums = largest_first(np.sort(lengths)[::-1], np.zeros(rows, np.int64))
    return int(sums.max(initial=0))


def least_padding_capacities(needs: Sequence[int], count: int, multiple: int = 1) -> tuple[int, ...]:
    """The at most `count` capacities with which microbatches compute the least padding, ascending; exact.

    A microbatch runs with the smallest capacity that holds what it needs, and one without items not at all.

    Args:
        needs: The capacity that a row needs in each of some microbatches; 0 for one without items.
        count: Most capacities.
        multiple: Capacities are whole multiples of this.

    Returns:
        The capacities; none where no microbatch has items. The last one holds the largest need, and no more.
    """
    positive = np.array([need for need in needs if need > 0], np.int64)
    return choose_buckets(positive, count, multiple)[-1].sizes if len(positive) else ()
