"""Index tables of an exchange: which tokens every device sends to which other, and where each lands. NumPy only.

A token is a place of a row; a device holds the rows of one shard, and the devices of a shard hold the same. Devices are
numbered by their rank in the mesh over both ends.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int


@dataclasses.dataclass(frozen=True)
class TokenShards:
    """One end of an exchange.

    Attributes:
        devices: For every shard the devices that hold it.
        size: Tokens of a shard; those of all shards are numbered one shard after the other.
    """

    devices: tuple[tuple[int, ...], ...]
    size: int

    @property
    def copies(self) -> int:
        """Devices of a shard."""
        return len(self.devices[0])


class TokenRuns(NamedTuple):
    """Tokens to exchange, in runs that lie in one row at both ends; each token once.

    Attributes:
        sent, received: Number of the first token of each run, at the source and at the target.
        lengths: Tokens of each run.
    """

    sent: Int[np.ndarray, " k"]
    received: Int[np.ndarray, " k"]
    lengths: Int[np.ndarray, " k"]

    @property
    def reversed(self) -> "TokenRuns":
        """The same tokens on their way back."""
        return TokenRuns(self.received, self.sent, self.lengths)


@dataclasses.dataclass(frozen=True)
class ExchangeTables:
    """What some of u devices do.

    Attributes:
        send: For those of the source, the tokens of their shard in the order in which they send them, first those to
            device 0; padded by 0 to `most_sent`.
        receive: For those of the target, and each token of their shard, which of the tokens received it is, by sender;
            -1 for none.
        sizes: Tokens from each of all devices to each other.
    """

    send: Mapping[int, Int[np.ndarray, " s"]]
    receive: Mapping[int, Int[np.ndarray, " r"]]
    sizes: Int[np.ndarray, "u u"]


def most_sent(source: TokenShards, target: TokenShards) -> int:
    """The most tokens that a device can have to send: each of its own to its share of a target shard's devices."""
    return source.size * -(-target.copies // source.copies)


def exchange_tables(
    runs: TokenRuns, source: TokenShards, target: TokenShards, devices: int, local: Collection[int]
) -> ExchangeTables:
    """The tables of an exchange.

    The devices of a target shard take turns among those of a source shard. Between two devices runs keep their order.

    Args:
        runs: The tokens.
        source, target: Both ends.
        devices: Number u of devices.
        local: Those whose tables are wanted.
    """
    senders, receivers = (ends.ravel() for ends in _ends_of_runs(runs, source, target))  # [copies of the target * k]
    lengths = np.tile(runs.lengths, target.copies)
    sizes = np.bincount(senders * devices + receivers, lengths, devices**2)
    members = [_members(end, local) for end in (source, target)]
    send = np.zeros((len(members[0]), most_sent(source, target)), np.int32)
    row, number, token = _tokens(senders, receivers, np.tile(runs.sent, target.copies), lengths, members[0])
    send[row, number] = token % source.size
    receive = np.full((len(members[1]), target.size), -1, np.int32)
    row, number, token = _tokens(receivers, senders, np.tile(runs.received, target.copies), lengths, members[1])
    receive[row, token % target.size] = number
    return ExchangeTables(
        dict(zip(members[0], send, strict=True)),
        dict(zip(members[1], receive, strict=True)),
        sizes.astype(np.int32).reshape(devices, devices),
    )


def _members(end: TokenShards, local: Collection[int]) -> list[int]:
    return [device for shard in end.devices for device in shard if device in local]


def _ends_of_runs(
    runs: TokenRuns, source: TokenShards, target: TokenShards
) -> tuple[Int[np.ndarray, "c k"], Int[np.ndarray, "c k"]]:
    """For every copy of the target's shards, the device that sends each run, and the one that receives it."""
    copies = np.arange(target.copies)[:, None]
    senders = np.array(source.devices)[runs.sent // source.size, copies % source.copies]
    return senders, np.array(target.devices)[runs.received // target.size, copies]


def _tokens(
    ends: Int[np.ndarray, " n"],
    others: Int[np.ndarray, " n"],
    first: Int[np.ndarray, " n"],
    lengths: Int[np.ndarray, " n"],
    devices: Sequence[int],
) -> tuple[Int[np.ndarray, " t"], Int[np.ndarray, " t"], Int[np.ndarray, " t"]]:
    """All tokens of the runs that have one of some devices at one end, in the order of the devices at the other.

    Args:
        ends, others: Devices of each run at this end, and at the other.
        first, lengths: First token and length of each run.
        devices: Those that count.

    Returns:
        For each token the position of its device in `devices`, its number among the tokens of that device, and itself.
    """
    position_of = np.full(max(ends.max(initial=0), *devices, 0) + 1, -1)
    position_of[devices] = np.arange(len(devices))
    position = position_of[ends]
    order = np.lexsort((others, position))
    order = order[np.searchsorted(position[order], 0) :]  # without those of other devices
    position, lengths = position[order], lengths[order]
    begins = np.cumsum(lengths) - lengths
    within = np.arange(int(lengths.sum())) - np.repeat(begins, lengths)
    begins -= begins[np.searchsorted(position, position)]  # from the device's first token on
    return np.repeat(position, lengths), np.repeat(begins, lengths) + within, np.repeat(first[order], lengths) + within
