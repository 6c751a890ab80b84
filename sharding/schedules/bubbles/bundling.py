"""Which ops of the backbone can run in one program with an encoder's, in which it computes while they communicate."""

import bisect
from collections.abc import Hashable, Iterable, Mapping, Sequence

from sharding.schedules.bubbles.idle_intervals import Interval

Host = Hashable
"""An op of the backbone that can take a slice into its program."""


class BundleHosts:
    """Ops of the backbone with exposed collectives, by the classes of devices that run them; each takes one slice.

    Args:
        hosts: Start and end of each op, in seconds, and the op.
    """

    def __init__(self, hosts: Mapping[tuple[int, ...], Iterable[tuple[Interval, Host]]]) -> None:
        self._hosts = {lanes: sorted(lane_hosts, key=lambda host: host[0]) for lanes, lane_hosts in hosts.items()}
        self._left: dict[tuple[tuple[int, ...], str], int] = {}

    def copy(self, budget: int) -> "BundleHosts":
        """Returns an independent copy, from which so many ops on the same devices may be taken in either direction."""
        new = BundleHosts({})
        new._hosts = {lanes: list(hosts) for lanes, hosts in self._hosts.items()}
        new._left = {(lanes, kind): budget for lanes in new._hosts for kind in ("forward", "backward")}
        return new

    def take_latest(self, lanes: Sequence[int], due: float) -> tuple[Interval, Host] | None:
        """The last op on exactly these devices that ends by a time; None where there is none, or no more may be."""
        hosts, key = self._hosts.get(tuple(lanes), []), (tuple(lanes), "forward")
        position = bisect.bisect_right(hosts, due, key=lambda host: host[0][1]) - 1
        return self._take(hosts, position, key) if position >= 0 and self._left[key] > 0 else None

    def take_earliest(self, lanes: Sequence[int], release: float) -> tuple[Interval, Host] | None:
        """The first op on exactly these devices that starts at a time or later; None as above."""
        hosts, key = self._hosts.get(tuple(lanes), []), (tuple(lanes), "backward")
        position = bisect.bisect_left(hosts, release, key=lambda host: host[0][0])
        return self._take(hosts, position, key) if position < len(hosts) and self._left[key] > 0 else None

    def _take(
        self, hosts: list[tuple[Interval, Host]], position: int, key: tuple[tuple[int, ...], str]
    ) -> tuple[Interval, Host]:
        self._left[key] -= 1
        return hosts.pop(position)
