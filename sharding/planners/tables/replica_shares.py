"""How the replicas of a module share a microbatch, whose rows are as many as the backbone has replicas.

Each replica of the backbone takes a row. The items of an encoder or generator are dealt over any number of replicas,
each of which computes whole items: a microbatch takes as long as ceil(items / replicas) of them. Where nothing is known
of items, replicas take whole rows.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sharding.specs.layers.layer import LoadColumn, Loads

_EVERY = 16  # all numbers up to this one are considered; from there on numbers that differ by a share of themselves:
_REPLICA_STEPS, _ITEM_STEPS = 16, 4


class ReplicaShares(NamedTuple):
    """Loads of a module's replicas, for several numbers of replicas.

    Attributes:
        replicas: Numbers of replicas, ascending.
        rows: Rows' worth of load on the slowest replica: the mean over the microbatches that have items.
        active: Share of the microbatches that have items; the others take no time.
    """

    replicas: Int[np.ndarray, " n"]
    rows: Float[np.ndarray, " n"]
    active: float


class LeastShare(NamedTuple):
    """The least seconds of a module for a microbatch on any number of replicas: `count` times the seconds of `rows`."""

    count: float
    rows: float


@dataclasses.dataclass(frozen=True)
class OneRowEach:
    """A replica for every row of a microbatch: of the backbone. None where its expert ranks do not divide them."""

    ep: int
    tabulated_rows: Float[np.ndarray, " k"] = dataclasses.field(default_factory=lambda: np.array([0.0, 1.0]))

    def shares(self, dp: int) -> ReplicaShares:
        """Returns the loads of the replicas for a microbatch of `dp` rows."""
        count = int(dp % self.ep == 0)
        return ReplicaShares(np.full(count, dp), np.ones(count), 1.0)

    def least_share(self, dp: int) -> LeastShare:
        """Returns the least work of a microbatch of `dp` rows."""
        return LeastShare(float(dp), 1.0)

    def deals_items(self, dp: int, replicas: int) -> bool:
        """Whether so many replicas compute less of a microbatch of `dp` rows if its items are dealt over them."""
        return False


@dataclasses.dataclass(frozen=True)
class WholeRows:
    """Replicas that take whole rows of a microbatch.

    Attributes:
        row_divisors: Numbers that divide the rows of the global batch.
        ep: Divides the numbers of replicas.
    """

    row_divisors: Int[np.ndarray, " k"]
    ep: int

    @property
    def tabulated_rows(self) -> Float[np.ndarray, " k"]:
        """Rows' worth of load on a replica for which its table has costs."""
        return np.append(0.0, self.row_divisors)

    def shares(self, dp: int) -> ReplicaShares:
        """Returns the loads of the replicas for a microbatch of `dp` rows."""
        replicas = self.row_divisors[(dp % self.row_divisors == 0) & (self.row_divisors % self.ep == 0)]
        return ReplicaShares(replicas, dp / replicas, 1.0)

    def least_share(self, dp: int) -> LeastShare:
        """Returns the least work of a microbatch of `dp` rows."""
        return LeastShare(1.0, float(dp))

    def deals_items(self, dp: int, replicas: int) -> bool:
        """Whether so many replicas compute less of a microbatch of `dp` rows if its items are dealt over them."""
        return False


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class WholeItems:
    """Replicas over which the items of a microbatch are dealt, so that their numbers differ by one at most.

    Attributes:
        items: Items of every row of a global batch, in order; not all zero.
        per_row: Items of the mean row, by which loads are counted in rows.
        row_divisors: Numbers that divide the rows of the global batch.
        ep: Divides the numbers of replicas.
        devices: The most replicas.
    """

    items: Float[np.ndarray, " n"]
    per_row: float
    row_divisors: Int[np.ndarray, " k"]
    ep: int
    devices: int

    @property
    def tabulated_rows(self) -> Float[np.ndarray, " k"]:
        """Rows' worth of load on a replica for which its table has costs."""
        most = int(np.ceil(max(self.items.sum(), len(self.items) * self.per_row)))
        return np.append(0, _count_up(most, _ITEM_STEPS)) / self.per_row

    def shares(self, dp: int) -> ReplicaShares:
        """Returns the loads of the replicas for a microbatch of `dp` rows."""
        items = self._by_microbatch(dp)
        most = min(self.devices, int(max(np.ceil(items.max()), dp)))
        whole_rows = self.row_divisors[(dp % self.row_divisors == 0) & (self.row_divisors <= most)]
        replicas = np.union1d(_count_up(most // self.ep, _REPLICA_STEPS) * self.ep, whole_rows)
        replicas = replicas[(replicas > 0) & (replicas % self.ep == 0)]
        totals, times = np.unique(items[items > 0], return_counts=True)
        slowest = times @ slowest_items(totals, replicas) / times.sum()
        return ReplicaShares(replicas, slowest / self.per_row, float(times.sum() / len(items)))

    def least_share(self, dp: int) -> LeastShare:
        """Returns the work of `dp` rows on one replica, which reads weights once and rounds no items up."""
        items = self._by_microbatch(dp)
        active = items[items > 0]
        return LeastShare(len(active) / len(items), float(active.mean()) / self.per_row)

    def deals_items(self, dp: int, replicas: int) -> bool:
        """Whether so many replicas compute less if items are dealt; whole rows, if alike, need no exchange."""
        if dp % replicas:
            return True
        most = self._by_microbatch(dp // replicas).reshape(-1, replicas).max(axis=1)
        return float(most.sum()) > float(slowest_items(self._by_microbatch(dp), np.array([replicas])).sum()) + 1e-6

    def _by_microbatch(self, dp: int) -> Float[np.ndarray, " m"]:
        return self.items.reshape(-1, dp).sum(axis=1)


ReplicaSharing = OneRowEach | WholeRows | WholeItems
"""How the replicas of one module share a microbatch."""


def replica_sharing(
    rows: Loads, per_row: float, row_divisors: Int[np.ndarray, " k"], ep: int, devices: int
) -> ReplicaSharing:
    """How the replicas of an encoder or generator share a microbatch.

    Args:
        rows: Loads of the rows of a global batch, in order.
        per_row: Items of the mean row.
        row_divisors: Numbers that divide the rows.
        ep: Divides the numbers of replicas.
        devices: The most replicas.
    """
    items = rows[:, LoadColumn.ITEMS]
    if not items.any() or not per_row:
        return WholeRows(row_divisors, ep)
    return WholeItems(items=items, per_row=per_row, row_divisors=row_divisors, ep=ep, devices=devices)


def slowest_items(items: Float[np.ndarray, " m"], replicas: Int[np.ndarray, " n"]) -> Float[np.ndarray, "m n"]:
    """The most items of a replica: numbers differ by at most one. The items of a mean row may be fractions."""
    least, rest = np.divmod(items[:, None], replicas)
    return least + np.minimum(rest, 1)


@functools.cache
def _count_up(most: int, steps: int) -> Int[np.ndarray, " n"]:
    """All numbers from 1 up to _EVERY, then in steps of a share of themselves, up to `most`."""
    counts = [1]
    while counts[-1] < most:
        counts.append(counts[-1] + (1 if counts[-1] < _EVERY else counts[-1] // steps))
    return np.minimum(counts, most)
