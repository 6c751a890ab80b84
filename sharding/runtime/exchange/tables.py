"""Index tables of an exchange: which tokens every device sends to which other, and where each lands. NumPy only.

A token is a place of a row; a device holds the rows of one shard, and the devices of a shard hold the same. Devices are
numbered by their rank in the mesh over both ends.
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int


@dataclasses.dataclass(frozen=True)
class TokenShards:
    """One end of an exchange.

    Attributes:
        devices: For every shard the devices that hold it.
        size: Tokens of a shard; the tokens of all shards are numbered one shard after the other.
    """

    devices: tuple[tuple[int, ...], ...]
    size: int

    @property
    def copies(self) -> int:
        """Number of devices that hold each shard."""
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
        """Returns the runs of the tokens on their way back."""
        return TokenRuns(self.received, self.sent, self.lengths)


@dataclasses.dataclass(frozen=True)
class ExchangeTables:
    """The tables by which some of u devices send and receive.

    Attributes:
        send: For the source's devices, the tokens of their shard in the order in which they send them, first the tokens
            to device 0; padded by 0 to `most_sent`.
        receive: For the target's devices and each token of their shard, which of the tokens received it is, by sender
            and from 1 on; 0 for none.
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

    The devices of a target shard take turns among the devices of a source shard. Between two devices runs keep their
    order.

    Args:
        runs: The tokens.
        source, target: Both ends.
        devices: Number u of devices.
        local: The devices whose tables are wanted.
    """
    senders, receivers = (ends.ravel() for ends in _ends_of_runs(runs, source, target))  # [copies of the target * k]
    lengths = np.tile(runs.lengths, target.copies)
    sizes = np.zeros(devices * devices, np.int32)
    np.add.at(sizes, senders * devices + receivers, lengths.astype(np.int32))
    begins, places = (
        np.tile(first % end.size, target.copies) for first, end in ((runs.sent, source), (runs.received, target))
    )
    sending, receiving = (_members(end, local) for end in (source, target))
    send = np.zeros((len(sending), most_sent(source, target)), np.int32)
    for device, number, chosen in _in_order(senders, receivers, lengths, sending):
        _copy_runs(send[device], number, begins[chosen], lengths[chosen])
    receive = np.zeros((len(receiving), target.size), np.int32)
    for device, number, chosen in _in_order(receivers, senders, lengths, receiving):
        _copy_runs(receive[device], places[chosen], number + 1, lengths[chosen])
    return ExchangeTables(
        dict(zip(sending, send, strict=True)),
        dict(zip(receiving, receive, strict=True)),
        sizes.reshape(devices, devices),
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


def _in_order(
    ends: Int[np.ndarray, " n"], others: Int[np.ndarray, " n"], lengths: Int[np.ndarray, " n"], devices: Sequence[int]
) -> Iterator[tuple[int, Int[np.ndarray, " r"], Int[np.ndarray, " r"]]]:
    """The runs that have one of some devices at one end, in the order of the devices at the other.

    Args:
        ends, others: Devices of each run at this end, and at the other.
        lengths: Their lengths.
        devices: The devices whose runs are returned.

    Yields:
        For each of the devices with runs its position in `devices`; of each run, how many of the device's tokens come
        before it; and which runs they are.
    """
    position_of = np.full(max(ends.max(initial=0), *devices, 0) + 1, -1)
    position_of[devices] = np.arange(len(devices))
    position = position_of[ends]
    run_numbers = np.flatnonzero(position >= 0)
    position = position[run_numbers]
    order = np.argsort(position * (others.max(initial=0) + 1) + others[run_numbers], kind="stable")
    run_numbers = run_numbers[order]
    bounds = np.searchsorted(position[order], np.arange(len(devices) + 1))
    for device, (first, last) in enumerate(itertools.pairwise(bounds.tolist())):
        if first < last:
            chosen = run_numbers[first:last]
            yield device, np.cumsum(lengths[chosen]) - lengths[chosen], chosen


def _copy_runs(
    table: Int[np.ndarray, " t"],
    places: Int[np.ndarray, " r"],
    first: Int[np.ndarray, " r"],
    lengths: Int[np.ndarray, " r"],
) -> None:
    """Writes the numbers from each first one on to the places from its place on; there are few runs and many tokens."""
    numbers = np.arange(int((first + lengths).max()), dtype=np.int32)
    for place, number, length in zip(places.tolist(), first.tolist(), lengths.tolist(), strict=True):
        table[place : place + length] = numbers[number : number + length]
