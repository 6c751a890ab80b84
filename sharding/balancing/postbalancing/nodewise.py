"""Which replica computes which batch, so that little is sent between nodes (OrchMLLM 5.2.2, Algorithm 3).

Balancing decides which items form a batch, not where the batch is computed: permuting the batches changes no cost.
Links within a node are many times faster than links between nodes, so the objective is what replica i sends to replicas
of other nodes, and of that the largest over all i (equation 5, whose text says intra-node where it means inter-node).
"""

import heapq
from bisect import bisect_left

import numpy as np
from jaxtyping import Int

MIN_PATIENCE = 8
MAX_PATIENCE = 1200  # divided by the replicas: where a step is cheap, there is time for more of them
UNPLACED = -1  # the node of a batch that is not placed yet
MAX_CANDIDATES = 20  # batches that a swap considers: those to which a replica sends most


def inter_node_volume(
    lengths: Int[np.ndarray, " n"],
    source: Int[np.ndarray, " n"],
    target: Int[np.ndarray, " n"],
    nodes: Int[np.ndarray, " d"],
) -> Int[np.ndarray, " d"]:
    """What every replica sends to replicas of other nodes, in the unit of the lengths.

    Args:
        lengths: Of the items.
        source: The replica that has each item.
        target: The replica to which it is sent.
        nodes: The node of every replica.
    """
    crosses = nodes[source] != nodes[target]
    sent = np.bincount(source[crosses], weights=lengths[crosses], minlength=len(nodes))
    return sent.astype(np.int64)


def place_batches(
    lengths: Int[np.ndarray, " n"],
    source: Int[np.ndarray, " n"],
    batch: Int[np.ndarray, " n"],
    replicas: int,
    per_node: int,
) -> Int[np.ndarray, " d"]:
    """The replica that computes every batch, each a different one; replica i is on node `i // per_node`.

    This is a search in place of the paper's integer program. The replica that sends most gets the unplaced batch to
    which it sends most onto its node. Where its node is full, or there is no such batch, two batches are swapped
    between nodes, so that the most that any replica of either node sends becomes least. Swaps that make it larger are
    made too; the batch that was wanted may not move again for a while (tabu search). The best placement is returned.

    Args:
        lengths: Of the items.
        source: The replica that has each item.
        batch: The batch of each item, from any balancing.
        replicas: Number of replicas, and of batches.
        per_node: Replicas of a node.

    Raises:
        ValueError: The replicas cannot be divided into nodes.
    """
    if replicas < 1 or per_node < 1 or replicas % per_node:
        raise ValueError(f"{replicas} replicas cannot be divided into nodes of {per_node}")
    nodes = replicas // per_node
    totals = np.bincount(source, weights=lengths, minlength=replicas).astype(np.int64)
    patience = max(MAX_PATIENCE // replicas, MIN_PATIENCE)
    # A replica that has less than the worst will send cannot be the worst. If that guess was too high, all take part.
    ignored = int(totals.mean() * max(0.0, 1 - 4 / nodes))
    node_of, sent = PlacementSearch(SendVolumes(lengths, source, batch, totals, ignored), per_node).run(patience)
    if ignored and sent <= ignored:
        node_of, _ = PlacementSearch(SendVolumes(lengths, source, batch, totals, 0), per_node).run(patience)
    return _replicas_of(node_of)


def _replicas_of(node_of: list[int]) -> Int[np.ndarray, " d"]:
    """The batches of every node on its replicas, in order."""
    replica_of = np.empty(len(node_of), np.int64)
    replica_of[np.argsort(node_of, kind="stable")] = np.arange(len(node_of))
    return replica_of


class SendVolumes:
    """How much every replica sends to every batch, for the replicas that take part.

    Attributes:
        totals: Everything that each replica has.
        replica, batch, volume: One entry for each pair with a volume, by batch, then by replica.
        keys: batch * replicas + replica of every entry.
        by_volume: Indices of the entries by replica, largest volume first; those of replica i begin at `begins[i]`.
        batch_begins: Where the entries of each batch begin.
    """

    def __init__(
        self,
        lengths: Int[np.ndarray, " n"],
        source: Int[np.ndarray, " n"],
        batch: Int[np.ndarray, " n"],
        totals: Int[np.ndarray, " d"],
        above: int,
    ) -> None:
        replicas = len(totals)
        takes_part = totals[source] > above
        keys = (batch * replicas + source)[takes_part]
        order = np.argsort(keys)
        keys = keys[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        self.totals = totals
        self.volume = np.add.reduceat(lengths[takes_part][order], first) if len(first) else np.zeros(0, np.int64)
        self.keys = keys[first]
        self.batch, self.replica = np.divmod(self.keys, replicas)
        largest = int(self.volume.max(initial=0)) + 1
        self.by_volume = np.argsort(self.replica * largest + (largest - 1 - self.volume))
        self.begins = np.concatenate(([0], np.cumsum(np.bincount(self.replica, minlength=replicas))))
        self.batch_begins = np.concatenate(([0], np.cumsum(np.bincount(self.batch, minlength=replicas))))

    def batches_of(self, replica: int) -> Int[np.ndarray, " w"]:
        """The batches to which a replica sends something, largest volume first."""
        return self.batch[self.by_volume[self.begins[replica] : self.begins[replica + 1]]]

    def replicas_of(self, batch: int) -> Int[np.ndarray, " r"]:
        """The replicas that send something to a batch."""
        return self.replica[self.batch_begins[batch] : self.batch_begins[batch + 1]]


class PlacementSearch:
    """A placement under construction.

    Attributes:
        node_of: The node of every batch, or `UNPLACED`.
        sent: What every replica sends to other nodes; a batch without a node counts as on another.
    """

    def __init__(self, volumes: SendVolumes, per_node: int) -> None:
        self._volumes = volumes
        self._per_node = per_node
        replicas = len(volumes.totals)
        self.node_of = [UNPLACED] * replicas
        self.sent = volumes.totals.tolist()
        self._batches_on: list[list[int]] = [[] for _ in range(replicas // per_node)]
        self._volume_kept = np.zeros((replicas, per_node), np.int64)  # of every batch, by the replicas of its node
        self._tabu_until = np.zeros(replicas, np.int64)
        self._heap = [(-sent, replica) for replica, sent in enumerate(self.sent)]
        heapq.heapify(self._heap)
        self._entry_keys, self._entry_volumes = volumes.keys.tolist(), volumes.volume.tolist()
        self._candidates: dict[int, list[int]] = {}  # by replica: batches that it may still take, smallest volume first

    def run(self, patience: int) -> tuple[list[int], int]:
        """The node of every batch in the best placement, and an upper bound of the most that a replica sends in it.

        The search ends after `patience` swaps in a row that led to no better placement, or twice as many in all.
        """
        best, least = list(self.node_of), self.sent[self._worst_replica()] + 1
        step, last_step = 0, patience
        while True:
            worst = self._worst_replica()
            if self._place_unplaced(worst):
                continue
            if self.sent[worst] < least:
                best, least = list(self.node_of), self.sent[worst]
                last_step = min(step + patience, 2 * patience)
            if step == last_step or not self._swap(worst, step):
                return self._fill(best), least
            step += 1

    def _worst_replica(self) -> int:
        while -self._heap[0][0] != self.sent[self._heap[0][1]]:  # entries of the heap may be outdated
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def _place_unplaced(self, replica: int) -> bool:
        """Places the unplaced batch to which a replica sends most on its node; False without one or on a full node."""
        node = replica // self._per_node
        if len(self._batches_on[node]) == self._per_node:
            return False
        candidates = self._candidates.get(replica)
        if candidates is None:
            candidates = self._candidates[replica] = self._volumes.batches_of(replica)[::-1].tolist()
        while candidates and self.node_of[candidates[-1]] != UNPLACED:
            candidates.pop()
        if not candidates:
            return False
        self._place(candidates.pop(), node)
        return True

    def _place(self, batch: int, node: int) -> None:
        """Moves a batch to a node, or to none."""
        if self.node_of[batch] != UNPLACED:
            self._batches_on[self.node_of[batch]].remove(batch)
            self._update_sent(batch, self.node_of[batch], 1)
        self.node_of[batch] = node
        if node != UNPLACED:
            self._batches_on[node].append(batch)
            self._update_sent(batch, node, -1)

    def _update_sent(self, batch: int, node: int, sign: int) -> None:
        """Adds what the replicas of a node send to a batch to what they send (sign 1), or subtracts it (-1)."""
        replicas = len(self.node_of)
        first = node * self._per_node
        begin = batch * replicas + first
        self._volume_kept[batch] = 0
        for entry in range(bisect_left(self._entry_keys, begin), len(self._entry_keys)):
            offset = self._entry_keys[entry] - begin
            if offset >= self._per_node:
                return
            self.sent[first + offset] += sign * self._entry_volumes[entry]
            heapq.heappush(self._heap, (-self.sent[first + offset], first + offset))
            if sign < 0:
                self._volume_kept[batch, offset] = self._entry_volumes[entry]

    def _swap(self, replica: int, step: int) -> bool:
        """Brings a batch to a replica's node in exchange for one of the node's, as is best for both nodes.

        The batch may not move again for as many steps as leave the node two others. False if there is nothing to swap.
        """
        per_node = self._per_node
        node = replica // per_node
        wanted = self._volumes.batches_of(replica)[:MAX_CANDIDATES]
        homes = np.array([self.node_of[batch] for batch in wanted.tolist()], int)
        movable = (homes != node) & (self._tabu_until[wanted] <= step)
        wanted, homes = wanted[movable], homes[movable]
        offered = [batch for batch in self._batches_on[node] if self._tabu_until[batch] <= step]
        if len(self._batches_on[node]) < per_node:
            offered.append(UNPLACED)  # a free place of the node
        if not len(wanted) or not offered:
            return False
        after = self._most_sent_after(node, wanted, homes, offered)
        wanted_index, offered_index = divmod(int(after.argmin()), len(offered))
        batch, home, given = int(wanted[wanted_index]), int(homes[wanted_index]), offered[offered_index]
        if given != UNPLACED:
            self._place(given, UNPLACED)
        self._place(batch, node)
        if given != UNPLACED and home != UNPLACED:
            self._place(given, home)
        self._tabu_until[batch] = step + max(per_node - 2, 1)
        if given != UNPLACED and home == UNPLACED:  # it is unplaced now: replicas that have passed it by may take it
            for sender in self._volumes.replicas_of(given).tolist():
                self._candidates.pop(sender, None)
        return True

    def _most_sent_after(
        self, node: int, wanted: Int[np.ndarray, " w"], homes: Int[np.ndarray, " w"], offered: list[int]
    ) -> Int[np.ndarray, "w g"]:
        """The most that a replica of a node or of a wanted batch's home would send after every possible swap."""
        volumes, per_node, replicas = self._volumes, self._per_node, len(self.node_of)
        first = node * per_node
        to_all = np.zeros((per_node, replicas), np.int64)  # what the node's replicas send to every batch
        entries = volumes.by_volume[volumes.begins[first] : volumes.begins[first + per_node]]
        to_all[volumes.replica[entries] - first, volumes.batch[entries]] = volumes.volume[entries]
        to_offered = np.zeros((replicas + per_node, len(offered)), np.int64)  # what all send to every offered batch
        for column, batch in enumerate(offered):
            if batch != UNPLACED:
                entries = slice(volumes.batch_begins[batch], volumes.batch_begins[batch + 1])
                to_offered[volumes.replica[entries], column] = volumes.volume[entries]
        sent = np.array(self.sent)[first : first + per_node]
        here = sent[:, None, None] + to_offered[first : first + per_node, None, :] - to_all[:, wanted, None]
        sent = np.array(
            [
                self.sent[home * per_node : (home + 1) * per_node] if home != UNPLACED else [0] * per_node
                for home in homes.tolist()
            ]
        )
        at_home = to_offered.reshape(-1, per_node, len(offered))[homes]
        there = (sent + self._volume_kept[wanted])[:, :, None] - at_home
        return np.maximum(here.max(axis=0), np.where(homes[:, None] == UNPLACED, 0, there.max(axis=1)))

    def _fill(self, node_of: list[int]) -> list[int]:
        """Puts unplaced batches wherever there is room."""
        room = [self._per_node] * len(self._batches_on)
        for node in node_of:
            if node != UNPLACED:
                room[node] -= 1
        free_nodes = iter(np.repeat(np.arange(len(room)), room).tolist())
        return [next(free_nodes) if node == UNPLACED else node for node in node_of]
