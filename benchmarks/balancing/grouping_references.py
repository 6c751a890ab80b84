"""What grouping is measured against: the paper's passes in plain Python, one sample after the other."""

import numpy as np

Group = list[tuple[int, float, float]]
"""(number, vision units, text tokens) of each sample."""


def sample(items: Group, most: tuple[float, float], random: np.random.Generator) -> list[Group]:
    """OmniBal's Algorithm 1, with the last group, which the printed one forgets."""
    groups = []
    group: Group = []
    vision = text = 0.0
    for place in random.permutation(len(items)).tolist():
        item = items[place]
        vision += item[1]
        text += item[2]
        if group and (vision > most[0] or text > most[1]):
            groups.append(group)
            group = []
            _, vision, text = item
        group.append(item)
    return [*groups, group] if group else groups


def iterate(
    items: Group, most: tuple[float, float], threshold: tuple[float, float], rounds: int, random: np.random.Generator
) -> tuple[list[Group], Group]:
    """Algorithms 1 and 2 in turns: accepted groups, and the samples left.

    As in the public code, samples that exceed the capacity are dropped without a word.
    """
    left = [item for item in items if item[1] <= most[0] and item[2] <= most[1]]
    accepted = []
    for _ in range(rounds):
        groups, left = sample(left, most, random), []
        for group in groups:
            vision = sum(item[1] for item in group)
            text = sum(item[2] for item in group)
            if vision >= threshold[0] or text >= threshold[1]:
                accepted.append(group)
            else:
                left.extend(group)
    return accepted, left
