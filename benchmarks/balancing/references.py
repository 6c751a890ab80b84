"""References of the balancing benchmarks: algorithms of papers and public code as usually written, in Python."""

import heapq
import itertools

import numpy as np

SampleSizes = tuple[int, float, float]
"""(number, vision units, text tokens) of a sample."""
SampleGroup = list[SampleSizes]


def sample_groups(
    samples: SampleGroup, capacity: tuple[float, float], random: np.random.Generator
) -> list[SampleGroup]:
    """OmniBal's Algorithm 1, with the last group, which the printed one leaves out."""
    groups = []
    group: SampleGroup = []
    vision = text = 0.0
    for index in random.permutation(len(samples)).tolist():
        sample = samples[index]
        vision += sample[1]
        text += sample[2]
        if group and (vision > capacity[0] or text > capacity[1]):
            groups.append(group)
            group = []
            _, vision, text = sample
        group.append(sample)
    return [*groups, group] if group else groups


def iterative_sampling_and_filtering(
    samples: SampleGroup,
    capacity: tuple[float, float],
    threshold: tuple[float, float],
    rounds: int,
    random: np.random.Generator,
) -> tuple[list[SampleGroup], SampleGroup]:
    """OmniBal's Algorithms 1 and 2 by turns: accepted groups, and the samples left.

    As in the public code, samples that exceed the capacity are dropped silently.
    """
    left = [sample for sample in samples if sample[1] <= capacity[0] and sample[2] <= capacity[1]]
    accepted = []
    for _ in range(rounds):
        groups, left = sample_groups(left, capacity, random), []
        for group in groups:
            vision = sum(sample[1] for sample in group)
            text = sum(sample[2] for sample in group)
            if vision >= threshold[0] or text >= threshold[1]:
                accepted.append(group)
            else:
                left.extend(group)
    return accepted, left


def greedy(lengths: list[int], replicas: int) -> list[list[int]]:
    """OrchMLLM's Algorithm 1: items, longest first, to the batch on top of a priority queue. Items of every batch."""
    queue = [(0, batch) for batch in range(replicas)]
    batches: list[list[int]] = [[] for _ in range(replicas)]
    for item in sorted(range(len(lengths)), key=lambda item: -lengths[item]):
        total, batch = queue[0]
        batches[batch].append(item)
        heapq.heapreplace(queue, (total + lengths[item], batch))
    return batches


def differencing(lengths: list[int], replicas: int) -> list[list[int]]:
    """Karmarkar and Karp's differencing with equal counts; the number of items is a multiple of the replicas.

    A state is one division of some items: d sums, largest first, with their items. There are `n / d` states of one item
    for each replica at first; the two with the largest spreads are joined, largest sums to smallest, until one is left.
    """
    ascending = sorted(range(len(lengths)), key=lambda item: lengths[item])
    tie_breaker = itertools.count()
    queue: list[tuple[int, int, list[tuple[int, list[int]]]]] = []
    for begin in range(0, len(ascending), replicas):
        state = [(lengths[item], [item]) for item in reversed(ascending[begin : begin + replicas])]
        heapq.heappush(queue, (state[-1][0] - state[0][0], next(tie_breaker), state))
    while len(queue) > 1:
        first, second = heapq.heappop(queue)[2], heapq.heappop(queue)[2]
        joined = [
            (total + other_total, [*items, *other_items])
            for (total, items), (other_total, other_items) in zip(first, reversed(second), strict=True)
        ]
        joined.sort(key=lambda batch: -batch[0])
        heapq.heappush(queue, (joined[-1][0] - joined[0][0], next(tie_breaker), joined))
    return [items for _, items in queue[0][2]]


def padded(lengths: list[int], replicas: int) -> list[list[int]]:
    """OrchMLLM's Algorithm 2, with the longest length in the bounds and the best probe returned."""
    ascending = sorted(range(len(lengths)), key=lambda item: lengths[item])

    def fewest_batches(bound: int) -> list[list[int]]:
        batches: list[list[int]] = [[]]
        for item in ascending:
            if (len(batches[-1]) + 1) * lengths[item] > bound:
                batches.append([])
            batches[-1].append(item)
        return batches

    longest = lengths[ascending[-1]]
    low, high, best = longest, longest * (len(lengths) // replicas + 1), fewest_batches(longest)
    while low < high:
        middle = (low + high) // 2
        batches = fewest_batches(middle)
        if len(batches) <= replicas:
            best, high = batches, middle
        else:
            low = middle + 1
    return best


def assignment(batches: list[list[int]], items: int) -> np.ndarray:
    """The batch of every item."""
    batch_of = np.empty(items, np.int64)
    for number, batch in enumerate(batches):
        batch_of[batch] = number
    return batch_of
