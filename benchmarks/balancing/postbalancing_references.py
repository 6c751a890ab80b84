"""What balancing is measured against: the papers' and public code's algorithms as they are usually written."""

import heapq
import itertools

import numpy as np


def greedy(lengths: list[int], instances: int) -> list[list[int]]:
    """OrchMLLM's Algorithm 1: items, largest first, to the batch on top of a priority queue. Items of every batch."""
    queue = [(0, number) for number in range(instances)]
    batches: list[list[int]] = [[] for _ in range(instances)]
    for item in sorted(range(len(lengths)), key=lambda item: -lengths[item]):
        total, number = queue[0]
        batches[number].append(item)
        heapq.heapreplace(queue, (total + lengths[item], number))
    return batches


def differencing(lengths: list[int], instances: int) -> list[list[int]]:
    """Karmarkar and Karp's differencing with equal counts; the number of items is a multiple of the instances.

    A state is one division of some items: d sums, largest first, with their items. It begins with `n / d` states of one
    item an instance; the two with the largest spreads are joined, largest sums to smallest, until one is left.
    """
    ascending = sorted(range(len(lengths)), key=lambda item: lengths[item])
    tick = itertools.count()
    queue: list[tuple[int, int, list[tuple[int, list[int]]]]] = []
    for begin in range(0, len(ascending), instances):
        state = [(lengths[item], [item]) for item in reversed(ascending[begin : begin + instances])]
        heapq.heappush(queue, (state[-1][0] - state[0][0], next(tick), state))
    while len(queue) > 1:
        one, other = heapq.heappop(queue)[2], heapq.heappop(queue)[2]
        joined = [(a + b, [*mine, *theirs]) for (a, mine), (b, theirs) in zip(one, reversed(other), strict=True)]
        joined.sort(key=lambda held: -held[0])
        heapq.heappush(queue, (joined[-1][0] - joined[0][0], next(tick), joined))
    return [items for _, items in queue[0][2]]


def padded(lengths: list[int], instances: int) -> list[list[int]]:
    """OrchMLLM's Algorithm 2, with the longest length in the bounds and the best probe returned."""
    ascending = sorted(range(len(lengths)), key=lambda item: lengths[item])

    def least_batches(bound: int) -> list[list[int]]:
        batches: list[list[int]] = [[]]
        for item in ascending:
            if (len(batches[-1]) + 1) * lengths[item] > bound:
                batches.append([])
            batches[-1].append(item)
        return batches

    longest = lengths[ascending[-1]]
    low, high, best = longest, longest * (len(lengths) // instances + 1), least_batches(longest)
    while low < high:
        middle = (low + high) // 2
        batches = least_batches(middle)
        if len(batches) <= instances:
            best, high = batches, middle
        else:
            low = middle + 1
    return best


def assignment(batches: list[list[int]], items: int) -> np.ndarray:
    """The instance of every item."""
    instance = np.empty(items, np.int64)
    for number, batch in enumerate(batches):
        instance[batch] = number
    return instance
