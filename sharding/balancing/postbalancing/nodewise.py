"""Which replica computes which batch, so that little is sent between nodes (OrchMLLM 5.2.2, Algorithm 3).

Balancing decides which items form a batch, not where the batch is computed: permuting the batches changes no cost.
Links within a node are many times faster than links between nodes, so the objective is what replica i sends to replicas
of other nodes, and of that the largest over all i (equation 5, whose text says intra-node where it means inter-node).
The packing pipeline calls `place_batches` where phases with rows of their own lie on several nodes.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from sharding.balancing.postbalancing.array_sorting import stable_order

MIN_PATIENCE = 16
MAX_PATIENCE = 1200  # divided by the replicas: where a step is cheap, there is time for more of them
ROUND_PART = 5  # of so many nodes one gets a batch in each of the first rounds
MIN_ROUND = 4  # nodes that get one of these batches, if there are as many
TABU_SPREAD = 3  # steps by which the time differs for which a batch may not move
UNPLACED = -1  # the node of a batch that is not placed yet
MAX_CANDIDATES = 20  # batches that a swap considers: the batches to which a replica sends most


def inter_node_volume(
    lengths: Int[np.ndarray, " n"],
    source: Int[np.ndarray, " n"],
    target: Int[np.ndarray, " n"],
    nodes: Int[np.ndarray, " d"],
) -> Int[np.ndarray, " d"]:
    """Returns how much every replica sends to replicas of other nodes, in the unit of the lengths.

    Args:
        lengths: Lengths of the items.
        source: The replica that has each item.
        target: The replica to which it is sent.
        nodes: The node of every replica.
    """
    crosses = nodes[source] != nodes[target]
    sent = np.bincount(source[crosses], weights=lengths[crosses], minlength=len(nodes))
    return sent.astype(np.int64)


class SentItems(NamedTuple):
    """Items that replicas have, and the batches to which they are sent.

    Attributes:
        lengths: Lengths of the items.
        source: The replica that has each item.
        batch: The batch of each item, from any balancing.
    """

    lengths: Int[np.ndarray, " n"]
    source: Int[np.ndarray, " n"]
    batch: Int[np.ndarray, " n"]


def place_batches(items: SentItems, replicas: int, per_node: int) -> Int[np.ndarray, " d"]:
    """The replica that computes every batch, each a different one; replica i is on node `i // per_node`.

    This is a search in place of the paper's integer program. The replicas that send most, one of a node, get the
    unplaced batches to which they send most onto their nodes, in rounds. Where the node of the worst is full, or there
    is no such batch, two batches are swapped between nodes, so that the most that any replica of either node sends
    becomes least. Swaps that make it larger are made too; the batch that was wanted may not move again for a while
    (tabu search). The best placement is returned.

    Args:
        items: The items and their batches.
        replicas: Number of replicas, and of batches.
        per_node: Replicas of a node.

    Raises:
        ValueError: The replicas cannot be divided into nodes.
    """
    if replicas < 1 or per_node < 1 or replicas % per_node:
        raise ValueError(f"{replicas} replicas cannot be divided into nodes of {per_node}")
    totals = np.bincount(items.source, weights=items.lengths, minlength=replicas).astype(np.int64)
    ignored = _least_worst(items, totals, per_node)
    search = PlacementSearch(SendVolumes(items, totals, totals > ignored), per_node)
    return _replicas_of(search.run(max(MAX_PATIENCE // replicas, MIN_PATIENCE)))


def _least_worst(items: SentItems, totals: Int[np.ndarray, " d"], per_node: int) -> int:
    """A lower bound of the most that a replica sends; replicas that hold no more than it need not be considered.

    A replica keeps what it sends to at most `per_node` batches. That is computed for the replicas that have most.
    """
    heaviest = np.argsort(-totals, kind="stable")[:per_node]
    takes_part = np.zeros(len(totals), bool)
    takes_part[heaviest] = True
    volumes = SendVolumes(items, totals, takes_part)
    return max(int(totals[replica] - volumes.volumes_of(replica)[:per_node].sum()) for replica in heaviest.tolist())


def _replicas_of(node_of: Int[np.ndarray, " d"]) -> Int[np.ndarray, " d"]:
    """The batches of every node on its replicas, in order."""
    replica_of = np.empty(len(node_of), np.int64)
    replica_of[stable_order(node_of)] = np.arange(len(node_of))
    return replica_of


class SendVolumes:
    """How much every replica sends to every batch, for the replicas that are considered.

    Attributes:
        totals: Everything that each replica has.
        replica, batch, volume: One entry for each pair with a volume, by batch, then by replica.
        keys: batch * replicas + replica of every entry.
        by_volume: Indices of the entries by replica, largest volume first; the entries of replica i begin at
            `begins[i]`.
        batch_begins: Where the entries of each batch begin.
    """

    def __init__(self, items: SentItems, totals: Int[np.ndarray, " d"], takes_part: Bool[np.ndarray, " d"]) -> None:
        replicas = len(totals)
        considered = np.flatnonzero(takes_part[items.source])
        keys = items.batch[considered] * replicas + items.source[considered]
        order = stable_order(keys)
        keys = keys[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        self.totals = totals
        self.volume = np.add.reduceat(items.lengths[considered[order]], first) if len(first) else np.zeros(0, np.int64)
        self.keys = keys[first]
        self.batch = self.keys // replicas
        self.replica = self.keys - self.batch * replicas
        largest = int(self.volume.max(initial=0)) + 1
        self.by_volume = stable_order(self.replica * largest + (largest - 1 - self.volume))
        self.begins = np.concatenate(([0], np.cumsum(np.bincount(self.replica, minlength=replicas))))
        self.batch_begins = np.concatenate(([0], np.cumsum(np.bincount(self.batch, minlength=replicas))))

    def volumes_of(self, replica: int) -> Int[np.ndarray, " w"]:
        """Returns how much a replica sends to each of these batches, in the unit of the lengths."""
        return self.volume[self.by_volume[self.begins[replica] : self.begins[replica + 1]]]

    def batches_of(self, replica: int) -> Int[np.ndarray, " w"]:
        """Returns the batches to which a replica sends something, largest volume first."""
        return self.batch[self.by_volume[self.begins[replica] : self.begins[replica + 1]]]

    def first_chosen(self, replicas: Int[np.ndarray, " r"], choosable: Bool[np.ndarray, " d"]) -> Int[np.ndarray, " r"]:
        """Returns for each replica the batch to which it sends most, of the ones that can be chosen; -1 without one."""
        entries, counts = _ranges(self.begins[replicas], self.begins[replicas + 1])
        batches = self.batch[self.by_volume[entries]]
        at = np.flatnonzero(choosable[batches])
        owners = np.repeat(np.arange(len(replicas)), counts)[at]
        chosen = np.full(len(replicas), -1)
        chosen[owners[::-1]] = batches[at[::-1]]  # the first of each is written last
        return chosen

    def within_nodes(
        self, batches: Int[np.ndarray, " w"], nodes: Int[np.ndarray, " w"], per_node: int
    ) -> Int[np.ndarray, " e"]:
        """Returns the entries for what each replica of a node sends to a batch."""
        begin = batches * len(self.totals) + nodes * per_node
        return _ranges(*np.searchsorted(self.keys, (begin, begin + per_node)))[0]


def _ranges(
    begins: Int[np.ndarray, " w"], ends: Int[np.ndarray, " w"]
) -> tuple[Int[np.ndarray, " e"], Int[np.ndarray, " w"]]:
    """All numbers of some ranges, one range after another, and how many each has."""
    counts = ends - begins
    offsets = np.cumsum(counts)
    return np.repeat(ends - offsets, counts) + np.arange(offsets[-1]), counts


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
        self.node_of = np.full(replicas, UNPLACED)
        self.sent = volumes.totals.copy()
        self._room = np.full(replicas // per_node, per_node)
        self._volume_kept = np.zeros((replicas, per_node), np.int64)  # of every batch, by the replicas of its node
        self._tabu_until = np.zeros(replicas, np.int64)

    def run(self, patience: int) -> Int[np.ndarray, " d"]:
        """The node of every batch in the best placement.

        The search ends after `patience` swaps in a row that led to no better placement, or twice as many in all.
        """
        best, least = self.node_of.copy(), int(self.sent.max()) + 1
        step, last_step = 0, patience
        round_nodes = max(len(self._room) // ROUND_PART, MIN_ROUND)
        while True:
            while self._place_round(1 if step else round_nodes):
                continue
            worst = int(self.sent.argmax())
            if self.sent[worst] < least:
                best, least = self.node_of.copy(), int(self.sent[worst])
                last_step = min(step + patience, 2 * patience)
            if step == last_step or not self._swap(worst, step):
                return self._fill(best)
            step += 1

    def _place_round(self, count: int) -> bool:
        """Gives the `count` nodes with the worst replicas the unplaced batches to which these replicas send most.

        Of nodes that want the same batch the worst gets it. False if the worst of all gets none, because its node is
        full or all that it sends to is placed.
        """
        by_node = self.sent.reshape(-1, self._per_node)
        sent = by_node.max(axis=1)
        nodes = np.argsort(-sent, kind="stable")[:count] if count > 1 else sent.argmax(keepdims=True)
        if not self._room[nodes[0]]:
            return False
        nodes = nodes[self._room[nodes] > 0]
        worst = by_node[nodes].argmax(axis=1) + nodes * self._per_node
        batches = self._volumes.first_chosen(worst, self.node_of == UNPLACED)
        if batches[0] < 0:
            return False
        if count > 1:
            batches, first = np.unique(batches, return_index=True)
            nodes = nodes[first]
        placed = batches >= 0
        self._place(batches[placed], nodes[placed])
        return True

    def _place(self, batches: Int[np.ndarray, " w"], nodes: Int[np.ndarray, " w"]) -> None:
        """Places batches that have no node, each on another node."""
        entries = self._volumes.within_nodes(batches, nodes, self._per_node)
        replica, volume = self._volumes.replica[entries], self._volumes.volume[entries]
        self.sent[replica] -= volume
        self._volume_kept[self._volumes.batch[entries], replica % self._per_node] = volume
        self.node_of[batches] = nodes
        self._room[nodes] -= 1

    def _remove(self, batch: int) -> None:
        """Takes a batch from its node."""
        node = self.node_of[batch]
        self.sent[node * self._per_node : (node + 1) * self._per_node] += self._volume_kept[batch]
        self._volume_kept[batch] = 0
        self.node_of[batch] = UNPLACED
        self._room[node] += 1

    def _swap(self, replica: int, step: int) -> bool:
        """Brings a batch to a replica's node in exchange for one of the node's, as is best for both nodes.

        The batch may not move again for as many steps as leave the node two others, or some fewer: steps of one length
        lead back to where they began. False if there is nothing to swap.
        """
        per_node = self._per_node
        node = replica // per_node
        wanted = self._volumes.batches_of(replica)[:MAX_CANDIDATES]
        homes = self.node_of[wanted]
        movable = (homes != node) & (self._tabu_until[wanted] <= step)
        wanted, homes = wanted[movable], homes[movable]
        offered = np.flatnonzero((self.node_of == node) & (self._tabu_until <= step))
        if self._room[node]:
            offered = np.append(offered, UNPLACED)  # a free place of the node
        if not len(wanted) or not len(offered):
            return False
        after = self._most_sent_after(node, wanted, homes, offered)
        wanted_index, offered_index = divmod(int(after.argmin()), len(offered))
        batch, home, given = int(wanted[wanted_index]), int(homes[wanted_index]), int(offered[offered_index])
        if home != UNPLACED:
            self._remove(batch)
        if given != UNPLACED:
            self._remove(given)
        placed = slice(2 if given != UNPLACED and home != UNPLACED else 1)
        self._place(np.array([batch, given])[placed], np.array([node, home])[placed])
        self._tabu_until[batch] = step + max(per_node - 2 - step % TABU_SPREAD, 1)
        return True

    def _most_sent_after(
        self,
        node: int,
        wanted: Int[np.ndarray, " w"],
        homes: Int[np.ndarray, " w"],
        offered: Int[np.ndarray, " g"],
    ) -> Int[np.ndarray, "w g"]:
        """The most that a replica of a node or of a wanted batch's home would send after every possible swap."""
        volumes, per_node, replicas = self._volumes, self._per_node, len(self.node_of)
        first = node * per_node
        to_all = np.zeros((per_node, replicas), np.int64)  # what the node's replicas send to every batch
        entries = volumes.by_volume[volumes.begins[first] : volumes.begins[first + per_node]]
        to_all[volumes.replica[entries] - first, volumes.batch[entries]] = volumes.volume[entries]
        to_offered = np.zeros((replicas, len(offered)), np.int64)  # what all send to every offered batch
        for column, batch in enumerate(offered.tolist()):
            if batch != UNPLACED:
                entries = slice(volumes.batch_begins[batch], volumes.batch_begins[batch + 1])
                to_offered[volumes.replica[entries], column] = volumes.volume[entries]
        sent = self.sent.reshape(-1, per_node)
        here = sent[node][:, None, None] + to_offered[first : first + per_node, None, :] - to_all[:, wanted, None]
        at_home = to_offered.reshape(-1, per_node, len(offered))[homes]
        there = (sent[homes] + self._volume_kept[wanted])[:, :, None] - at_home
        return np.maximum(here.max(axis=0), np.where(homes[:, None] == UNPLACED, 0, there.max(axis=1)))

    def _fill(self, node_of: Int[np.ndarray, " d"]) -> Int[np.ndarray, " d"]:
        """Puts unplaced batches wherever there is room."""
        unplaced = node_of == UNPLACED
        room = self._per_node - np.bincount(node_of[~unplaced], minlength=len(self._room))
        filled = node_of.copy()
        filled[unplaced] = np.repeat(np.arange(len(room)), room)
        return filled
