"""The search of `nodewise.place`."""

import heapq
from bisect import bisect_left

import numpy as np
from jaxtyping import Int

FREE = -1  # the node of a batch that nobody hosts yet
WISHES = 20  # batches that an exchange considers, those with most of an instance


class SendVolumes:
    """How much every instance sends to every batch, for the instances that take part.

    Attributes:
        totals: Of every instance, all it has.
        instance, batch, volume: One entry for each pair with a volume, by batch, then by instance.
        largest: The entries' numbers by instance, largest volume first; those of instance i from `begins[i]` on.
    """

    def __init__(
        self,
        lengths: Int[np.ndarray, " n"],
        source: Int[np.ndarray, " n"],
        batch: Int[np.ndarray, " n"],
        totals: Int[np.ndarray, " d"],
        above: int,
    ) -> None:
        instances = len(totals)
        used = totals[source] > above
        key = (batch * instances + source)[used]
        order = np.argsort(key)
        key = key[order]
        first = np.flatnonzero(np.diff(key, prepend=-1))
        self.totals = totals
        self.volume = np.add.reduceat(lengths[used][order], first) if len(first) else np.zeros(0, np.int64)
        self.keys = key[first]
        self.batch, self.instance = np.divmod(self.keys, instances)
        largest = int(self.volume.max(initial=0)) + 1
        self.largest = np.argsort(self.instance * largest + (largest - 1 - self.volume))
        self.begins = np.concatenate(([0], np.cumsum(np.bincount(self.instance, minlength=instances))))
        self.batch_begins = np.concatenate(([0], np.cumsum(np.bincount(self.batch, minlength=instances))))


class PlacementSearch:
    """A placement under construction; instances are grouped into nodes of `per_node`.

    Attributes:
        node: Of every batch.
        sent: What every instance sends to other nodes, where a batch without a node counts as elsewhere.
    """

    def __init__(self, volumes: SendVolumes, per_node: int) -> None:
        self._of = volumes
        self._per_node = per_node
        instances = len(volumes.totals)
        self.node = [FREE] * instances
        self.sent = volumes.totals.tolist()
        self._hosted: list[list[int]] = [[] for _ in range(instances // per_node)]
        self._kept = np.zeros((instances, per_node), np.int64)  # of every batch, by the instances of its node
        self._held_until = np.zeros(instances, np.int64)
        self._heap = [(-sent, instance) for instance, sent in enumerate(self.sent)]
        heapq.heapify(self._heap)
        self._keys, self._volumes = volumes.keys.tolist(), volumes.volume.tolist()
        self._left: dict[int, list[int]] = {}  # by instance: batches it may still take, smallest volume first

    def run(self, patience: int) -> tuple[list[int], int]:
        """The node of every batch in the best placement found, and at most what its worst instance sends.

        The search ends after `patience` exchanges in a row that led to no better one, and after twice as many in all.
        """
        best, least = list(self.node), self.sent[self._worst()] + 1
        step, last = 0, patience
        while True:
            worst = self._worst()
            if self._take_free(worst):
                continue
            if self.sent[worst] < least:
                best, least, last = list(self.node), self.sent[worst], min(step + patience, 2 * patience)
            if step == last or not self._exchange(worst, step):
                return self._filled(best), least
            step += 1

    def _worst(self) -> int:
        while -self._heap[0][0] != self.sent[self._heap[0][1]]:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def _take_free(self, instance: int) -> bool:
        """Gives an instance's node the free batch to which it sends most; False without one, or with a full node."""
        node = instance // self._per_node
        if len(self._hosted[node]) == self._per_node:
            return False
        left = self._left.get(instance)
        if left is None:
            left = self._left[instance] = self._wished(instance)[::-1].tolist()
        while left and self.node[left[-1]] != FREE:
            left.pop()
        if not left:
            return False
        self._put(left.pop(), node)
        return True

    def _wished(self, instance: int) -> Int[np.ndarray, " w"]:
        """The batches to which an instance sends something, largest volume first."""
        of = self._of
        return of.batch[of.largest[of.begins[instance] : of.begins[instance + 1]]]

    def _put(self, batch: int, node: int) -> None:
        """Moves a batch to a node, or to none."""
        if self.node[batch] != FREE:
            self._hosted[self.node[batch]].remove(batch)
            self._change(batch, self.node[batch], 1)
        self.node[batch] = node
        if node != FREE:
            self._hosted[node].append(batch)
            self._change(batch, node, -1)

    def _change(self, batch: int, node: int, sign: int) -> None:
        instances = len(self.node)
        first = node * self._per_node
        begin = batch * instances + first
        self._kept[batch] = 0
        for at in range(bisect_left(self._keys, begin), len(self._keys)):
            place = self._keys[at] - begin
            if place >= self._per_node:
                return
            self.sent[first + place] += sign * self._volumes[at]
            heapq.heappush(self._heap, (-self.sent[first + place], first + place))
            if sign < 0:
                self._kept[batch, place] = self._volumes[at]

    def _exchange(self, instance: int, step: int) -> bool:
        """Brings a batch to an instance's node for one of the node's, as is best for the worst of both nodes.

        The batch may not move again for as many steps as leave the node two others. False if there is nothing to
        exchange.
        """
        each = self._per_node
        node = instance // each
        wished = self._wished(instance)[:WISHES]
        homes = np.array([self.node[batch] for batch in wished.tolist()], int)
        movable = (homes != node) & (self._held_until[wished] <= step)
        wished, homes = wished[movable], homes[movable]
        given = [batch for batch in self._hosted[node] if self._held_until[batch] <= step]
        if len(self._hosted[node]) < each:
            given.append(FREE)
        if not len(wished) or not given:
            return False
        after = self._worst_after(node, wished, homes, given)
        wish, gift = divmod(int(after.argmin()), len(given))
        batch, home = int(wished[wish]), int(homes[wish])
        if given[gift] != FREE:
            self._put(given[gift], FREE)
        self._put(batch, node)
        if given[gift] != FREE and home != FREE:
            self._put(given[gift], home)
        self._held_until[batch] = step + max(each - 2, 1)
        self._reopen(given[gift], home)
        return True

    def _worst_after(
        self, node: int, wished: Int[np.ndarray, " w"], homes: Int[np.ndarray, " w"], given: list[int]
    ) -> Int[np.ndarray, "w g"]:
        """What the worst instance of a node and of a wished batch's home would send after every possible exchange."""
        of, each, instances = self._of, self._per_node, len(self.node)
        first = node * each
        mine = np.zeros((each, instances), np.int64)  # what the node's instances send to every batch
        entries = of.largest[of.begins[first] : of.begins[first + each]]
        mine[of.instance[entries] - first, of.batch[entries]] = of.volume[entries]
        theirs = np.zeros((instances + each, len(given)), np.int64)  # what all send to every batch given; none: no node
        for column, batch in enumerate(given):
            if batch != FREE:
                entries = slice(of.batch_begins[batch], of.batch_begins[batch + 1])
                theirs[of.instance[entries], column] = of.volume[entries]
        sent = np.array(self.sent)[first : first + each]
        here = sent[:, None, None] + theirs[first : first + each, None, :] - mine[:, wished, None]
        sent = np.array(
            [self.sent[home * each : (home + 1) * each] if home != FREE else [0] * each for home in homes.tolist()]
        )
        there = (sent + self._kept[wished])[:, :, None] - theirs.reshape(-1, each, len(given))[homes]
        return np.maximum(here.max(axis=0), np.where(homes[:, None] == FREE, 0, there.max(axis=1)))

    def _reopen(self, batch: int, home: int) -> None:
        """A batch has become free: whoever passed it by looks again."""
        if batch != FREE and home == FREE:
            of = self._of
            for instance in of.instance[of.batch_begins[batch] : of.batch_begins[batch + 1]].tolist():
                self._left.pop(instance, None)

    def _filled(self, node: list[int]) -> list[int]:
        """Free batches go wherever there is room."""
        room = [self._per_node] * len(self._hosted)
        for home in node:
            if home != FREE:
                room[home] -= 1
        rooms = iter(np.repeat(np.arange(len(room)), room).tolist())
        return [next(rooms) if home == FREE else home for home in node]
