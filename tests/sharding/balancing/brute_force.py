"""Every way to divide a few items among a few instances."""

import itertools

import numpy as np


def least_cost(lengths, instances, cost, equal=False):
    """The least that the costliest instance can cost."""
    return min(
        largest_cost(lengths, np.array(instance, int), instances, cost)
        for instance in itertools.product(range(instances), repeat=len(lengths))
        if not equal or spread(np.array(instance, int), instances) <= 1
    )


def largest_cost(lengths, instance, instances, cost):
    """Of an assignment."""
    return max(cost(lengths[instance == each]) for each in range(instances))


def spread(instance, instances):
    """The largest difference of two instances' counts."""
    return int(np.ptp(np.bincount(instance, minlength=instances)))
