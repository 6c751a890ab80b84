"""Every way to divide a few items among a few instances that are alike."""

import numpy as np


def least_cost(lengths, instances, cost, equal=False):
    """The least that the costliest instance can cost."""
    return min(
        largest_cost(lengths, instance, instances, cost)
        for instance in divisions(len(lengths), instances)
        if not equal or spread(instance, instances) <= 1
    )


def divisions(items, instances):
    """The instance of every item; an instance is used only after those before it, as their names do not matter."""
    found = [[]]
    for _ in range(items):
        found = [[*each, k] for each in found for k in range(min(max(each, default=-1) + 2, instances))]
    return [np.array(each, int) for each in found]


def largest_cost(lengths, instance, instances, cost):
    """Of an assignment."""
    return max(cost(lengths[instance == each]) for each in range(instances))


def spread(instance, instances):
    """The largest difference of two instances' counts."""
    return int(np.ptp(np.bincount(instance, minlength=instances)))
