"""Index tables of an exchange: which tokens every device sends to which other, and where each lands. NumPy only.

A token is a place of a row; a device holds the rows of one shard, and the devices of a shard hold the same. Devices are
numbered by their rank in the mesh over both ends.
"""

import dataclasses
from collections.abc import Sequence
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
        send: For each of these devices, the tokens of its shard in the order in which it sends them: first those to
            device 0; padded by 0.
        receive: For each of these devices and each token of its shard, which of the tokens received it is, by sender;
            -1 for none.
        sizes: Tokens from each of all devices to each other.
    """

    send: Int[np.ndarray, "l s"]
    receive: Int[np.ndarray, "l r"]
    sizes: Int[np.ndarray, "u u"]


def most_sent(source: TokenShards, target: TokenShards) -> int:
    """The most tokens that a device can have to send: each of its own to its share of a target shard's devices."""
    return source.size * -(-target.copies // source.copies)


def exchange_tables(
    runs: TokenRuns, source: TokenShards, target: TokenShards, devices: int, local: Sequence[int]
) -> ExchangeTables:
    """The tables of an exchange.

    The devices of a target shard take turns among those of a source shard. Between two devices runs keep their order.

    Args:
        runs: The tokens.
        source, target: Both ends.
        devices: Number u of devices.
        local: Those whose tables are wanted.
    """
    senders, receivers = _ends_of_runs(runs, source, target)  # [copies of the target, k] each
    pairs = (senders * devices + receivers).ravel()
    lengths = np.tile(runs.lengths, target.copies)
    sizes = np.bincount(pairs, lengths, devices**2).astype(np.int32).reshape(devices, devices)
    run_of = np.tile(np.arange(len(runs.lengths)), target.copies)
    senders, receivers = senders.ravel(), receivers.ravel()
    send = np.zeros((len(local), most_sent(source, target)), np.int32)
    receive = np.full((len(local), target.size), -1, np.int32)
    for row, device in enumerate(local):
        outgoing = np.flatnonzero(senders == device)
        outgoing = run_of[outgoing[np.argsort(receivers[outgoing], kind="stable")]]
        tokens = _tokens(runs.sent[outgoing] % source.size, runs.lengths[outgoing])
        send[row, : len(tokens)] = tokens
        incoming = np.flatnonzero(receivers == device)
        incoming = run_of[incoming[np.argsort(senders[incoming], kind="stable")]]
        tokens = _tokens(runs.received[incoming] % target.size, runs.lengths[incoming])
        receive[row, tokens] = np.arange(len(tokens))
    return ExchangeTables(send, receive, sizes)


def _ends_of_runs(
    runs: TokenRuns, source: TokenShards, target: TokenShards
) -> tuple[Int[np.ndarray, "c k"], Int[np.ndarray, "c k"]]:
    """For every copy of the target's shards, the device that sends each run, and the one that receives it."""
    copies = np.arange(target.copies)[:, None]
    senders = np.array(source.devices)[runs.sent // source.size, copies % source.copies]
    return senders, np.array(target.devices)[runs.received // target.size, copies]


def _tokens(first: Int[np.ndarray, " k"], lengths: Int[np.ndarray, " k"]) -> Int[np.ndarray, " n"]:
    """The numbers of all tokens of runs, one run after the other."""
    return np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(int(lengths.sum()))
