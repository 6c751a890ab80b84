"""Which faults hit which run and when, from a seed alone."""

import dataclasses
import itertools
import random
from collections.abc import Sequence

from benchmarks.faults.kinds import KINDS, LOST_HOST, PRODUCER, SAMPLE, FaultKind
from benchmarks.faults.moments import Moment, draw_moment

PROCESSES = (2, 3, 2, 4)
"""Numbers of processes, dealt in turns: half of the runs have the fewest, whose restarts take the least time."""

FAULTS_PER_RUN = 10
PRODUCER_FAULTS_PER_RUN = 4
DAMAGED_PER_RUN = 2


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault to come.

    Attributes:
        kind: Its kind.
        moment: When it hits.
        seed: Decides everything else: which process, which file.
    """

    kind: FaultKind
    moment: Moment
    seed: int


@dataclasses.dataclass(frozen=True)
class DrawnRun:
    """A run and its faults, in order.

    Attributes:
        processes: Processes that it begins with.
        with_producers: Whether producers make its batches.
        faults: The faults that hit it.
    """

    processes: int
    with_producers: bool
    faults: tuple[Fault, ...]


def kind_counts(count: int) -> dict[FaultKind, int]:
    """How many of so many faults are of each kind: in proportion to the weights, the rest by the largest remainders."""
    whole = sum(kind.weight for kind in KINDS)
    counts = {kind: count * kind.weight // whole for kind in KINDS}
    by_remainder = sorted(KINDS, key=lambda kind: -(count * kind.weight % whole))
    for kind in by_remainder[: count - sum(counts.values())]:
        counts[kind] += 1
    return counts


def draw_runs(count: int, seed: int) -> list[DrawnRun]:
    """So many faults, dealt to runs of 2 to 4 processes in turns."""
    chance = random.Random(seed)
    counts = kind_counts(count)
    hands: list[tuple[int, bool, list[FaultKind]]] = []
    deck = [kind for kind in KINDS if kind not in (PRODUCER, SAMPLE, LOST_HOST) for _ in range(counts[kind])]
    chance.shuffle(deck)
    turns = itertools.count()
    while deck or any(counts[kind] for kind in (PRODUCER, SAMPLE, LOST_HOST)):
        turn = next(turns)
        processes = PROCESSES[turn % len(PROCESSES)]
        with_producers = counts[PRODUCER] > 0 and turn % 2 == 0
        special = {LOST_HOST: processes - 2} | (
            {PRODUCER: PRODUCER_FAULTS_PER_RUN} if with_producers else {SAMPLE: DAMAGED_PER_RUN}
        )
        hand: list[FaultKind] = []
        for kind, most in special.items():
            dealt = min(most, counts[kind])
            counts[kind] -= dealt
            hand += [kind] * dealt
        plain = min(max(FAULTS_PER_RUN - len(hand), 0), len(deck))
        hand += [deck.pop() for _ in range(plain)]
        chance.shuffle(hand)
        hand.sort(key=lambda kind: kind is not SAMPLE)  # before the run has read the images that are damaged
        if hand:
            hands.append((processes, with_producers, hand))
    return [DrawnRun(processes, producers, draw_faults(hand, chance)) for processes, producers, hand in hands]


def draw_faults(kinds: Sequence[FaultKind], chance: random.Random) -> tuple[Fault, ...]:
    """A fault of each of the kinds, at a random moment."""
    return tuple(
        Fault(kind, draw_moment(chance.choice(kind.phases), chance), chance.randrange(2**32)) for kind in kinds
    )
