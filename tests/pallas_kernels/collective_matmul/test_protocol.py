"""The order of the collective kernels in every interleaving of few ranks, and in many interleavings of more."""

import collections
import dataclasses
import random

import pytest

from pallas_kernels.collective_matmul.protocol import (
    ProtocolProgram,
    ProtocolStep,
    all_gather_protocol,
    reduce_scatter_protocol,
    run_protocol,
)

PROGRAMS = [all_gather_protocol, reduce_scatter_protocol]


class UnsafeOrderError(Exception):
    """Something that must never happen did."""


class Recorder:
    """A port that records what one block of a rank does."""

    def __init__(self, rank, ranks):
        self.own, self.ranks, self.events = rank, ranks, []

    def rank(self, offset):
        return (self.own + offset) % self.ranks

    def wait(self, slot):
        self.events.append(("wait", self.own, slot))

    def multiply(self, step, chunk, target, slot):
        if step.waits:
            self.events.append(("read", self.own, chunk))
        if target is not None:
            self.events.append(("send", target, slot))

    def notify(self, target, slot):
        self.events.append(("notify", target, slot))


def recorded(program, rank):
    port = Recorder(rank, program.ranks)
    run_protocol(program, port)
    return tuple(port.events)


class Machine:
    """Ranks of several blocks each. A state has every block's position, and whether its last send is still in flight.

    Args:
        program: What the ranks run.
        blocks: Blocks of a rank, each of which fills its part of a slot and counts for it.
        counters: One for each slot, or one for all slots of a rank, as in jax's own kernel.
        lands_first: Whether a block counts for a slot only after its part has arrived there.
    """

    def __init__(self, program, blocks, counters="slot", lands_first=True):
        self.blocks, self.counters, self.lands_first = blocks, counters, lands_first
        self.owner = [rank for rank in range(program.ranks) for _ in range(blocks)]
        self.events = [recorded(program, rank) for rank in self.owner]
        self.start = tuple((0, False) for _ in self.owner)
        self.notifications, self.sends = collections.defaultdict(list), collections.defaultdict(list)
        for block, events in enumerate(self.events):
            for i, (kind, *where) in enumerate(events):
                if kind == "notify":
                    self.notifications[self.counter(*where)].append((block, i))
                if kind == "send":
                    following = (j for j in range(i + 1, len(events)) if events[j][0] == "send")
                    self.sends[tuple(where)].append((block, i, next(following, len(events))))

    def counter(self, rank, slot):
        return (rank, slot) if self.counters == "slot" else rank

    def full(self, state, rank, slot):
        parts = ((*state[block], sent, following) for block, sent, following in self.sends[rank, slot])
        return all(
            position > sent and not (flying and position <= following) for position, flying, sent, following in parts
        )

    def ended(self, state, rank):
        mine = range(rank * self.blocks, (rank + 1) * self.blocks)
        return all(state[block] == (len(self.events[block]), False) for block in mine)

    def moves(self, state, block):
        """The states to which a block, or the arrival of what it has sent, can lead. Raises UnsafeOrderError."""
        (position, flying), events = state[block], self.events[block]
        if flying:
            target = next(rank for kind, rank, _ in reversed(events[:position]) if kind == "send")
            if self.ended(state, target):
                raise UnsafeOrderError("written after the kernel has ended")
            yield self.changed(state, block, position, False)
        if position < len(events) and self.enabled(state, block, *events[position]):
            kind = events[position][0]
            yield self.changed(state, block, position + 1, kind == "send" or flying)

    def enabled(self, state, block, kind, rank, slot):
        (position, flying), events = state[block], self.events[block]
        if kind == "wait":
            waited = sum(kind == "wait" for kind, *_ in events[: position + 1])
            needed = self.blocks * (1 if self.counters == "slot" else waited)
            notifications = self.notifications[self.counter(rank, slot)]
            return sum(state[other][0] > index for other, index in notifications) >= needed
        if kind == "read" and not self.full(state, rank, slot):
            raise UnsafeOrderError("read before it is full")
        if kind == "send" and events[position] in events[:position]:
            raise UnsafeOrderError("written twice")
        if kind != "read" and self.ended(state, rank):
            raise UnsafeOrderError("written after the kernel has ended")
        return not (flying and (kind == "send" or (kind == "notify" and self.lands_first)))

    @staticmethod
    def changed(state, block, position, flying):
        return (*state[:block], (position, flying), *state[block + 1 :])

    def finished(self, state):
        return all(self.ended(state, rank) for rank in set(self.owner))

    def explore(self):
        """Visits every reachable state and returns their number. Raises UnsafeOrderError."""
        seen, todo = {self.start}, [self.start]
        while todo:
            state = todo.pop()
            following = [new for block in range(len(state)) for new in self.moves(state, block)]
            if not following and not self.finished(state):
                raise UnsafeOrderError("no block can proceed")
            todo += set(following) - seen
            seen.update(following)
        return len(seen)

    def run(self, order):
        """The end state of one interleaving, in which the first block of `order()` that can always proceeds."""
        state = self.start
        while following := next(filter(None, ([*self.moves(state, block)] for block in order())), None):
            state = following[-1]  # sends arrive as late as possible
        if not self.finished(state):
            raise UnsafeOrderError("no block can proceed")
        return state


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("ranks", "blocks"), [(2, 1), (2, 2), (2, 3), (3, 1)])
def test_no_interleaving_of_few_ranks_deadlocks_or_reads_or_writes_too_early(program, ranks, blocks):
    assert Machine(program(ranks), blocks).explore() > ranks**blocks


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("ranks", "blocks"), [(3, 2), (4, 1), (4, 3), (8, 1), (8, 2)])
def test_no_random_interleaving_of_more_ranks_deadlocks_or_reads_or_writes_too_early(program, ranks, blocks):
    machine = Machine(program(ranks), blocks)
    everyone = range(ranks * blocks)
    for seed in range(20):
        chance = random.Random(seed)
        assert machine.finished(machine.run(lambda chance=chance: chance.sample(everyone, len(everyone))))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("ranks", "blocks"), [(4, 2), (8, 2)])
def test_no_order_in_which_some_blocks_are_always_late_deadlocks(program, ranks, blocks):
    machine = Machine(program(ranks), blocks)
    for seed in range(20):
        importance = random.Random(seed).sample(range(ranks * blocks), ranks * blocks)
        assert machine.finished(machine.run(lambda importance=importance: importance))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_every_slot_is_filled_once_and_every_chunk_multiplied_once(program, ranks):
    events = [recorded(program(ranks), rank) for rank in range(ranks)]
    sent = [tuple(where) for one in events for kind, *where in one if kind == "send"]
    awaited = [tuple(where) for one in events for kind, *where in one if kind == "wait"]
    notified = [tuple(where) for one in events for kind, *where in one if kind == "notify"]
    assert len(set(sent)) == len(sent)
    others = [(to, slot) for to in range(ranks) for slot in range(ranks) if slot != to]
    assert sorted(awaited) == sorted(notified) == others
    assert sorted(step.chunk for step in program(ranks).steps) == list(range(ranks))


def changed_step(program, index, **changes):
    steps = list(program.steps)
    steps[index] = dataclasses.replace(steps[index], **changes)
    return dataclasses.replace(program, steps=tuple(steps))


def test_the_search_finds_every_kind_of_mistake():
    for broken, complaint in (
        (Machine(changed_step(all_gather_protocol(2), 0, waits=True), 1), "no block can proceed"),
        (
            Machine(ProtocolProgram(2, (ProtocolStep(0, False, 1, 0), ProtocolStep(1, False, 1, 0)), ()), 1),
            "written twice",
        ),
        (Machine(dataclasses.replace(reduce_scatter_protocol(2), awaited=()), 1), "after the kernel has ended"),
        (Machine(all_gather_protocol(2), 1, lands_first=False), "read before it is full"),
    ):
        with pytest.raises(UnsafeOrderError, match=complaint):
            broken.explore()


def test_one_counter_for_all_slots_would_be_unsafe():
    """A block that has run ahead counts twice, and the reader takes that for the first parts of both blocks."""
    with pytest.raises(UnsafeOrderError, match="read before it is full"):
        Machine(all_gather_protocol(3), 2, counters="rank").explore()
