"""Every division of a few items among a few equal replicas."""

import numpy as np


def least_cost(lengths, replicas, cost, equal=False):
    """The least possible cost of the costliest replica."""
    return min(
        largest_cost(lengths, replica_of, replicas, cost)
        for replica_of in divisions(len(lengths), replicas)
        if not equal or spread(replica_of, replicas) <= 1
    )


def divisions(items, replicas):
    """Replicas of all items; a replica is used only after those before it, since their numbers do not matter."""
    assignments = [[]]
    for _ in range(items):
        assignments = [
            [*assignment, k]
            for assignment in assignments
            for k in range(min(max(assignment, default=-1) + 2, replicas))
        ]
    return [np.array(assignment, int) for assignment in assignments]


def largest_cost(lengths, replica_of, replicas, cost):
    """The cost of the costliest replica of an assignment."""
    return max(cost(lengths[replica_of == replica]) for replica in range(replicas))


def spread(replica_of, replicas):
    """The largest difference between the counts of two replicas."""
    return int(np.ptp(np.bincount(replica_of, minlength=replicas)))


def total_length(lengths):
    """The cost of a replica whose cost is the sum of its lengths."""
    return int(lengths.sum())
