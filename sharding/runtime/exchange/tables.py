"""Index tables of an exchange: which tokens every device sends to which other, and where each lands. NumPy only.

A token is a place of a row; a device holds the rows of one shard, and the devices of a shard hold the same. Devices are
numbered by their rank in the mesh over both ends.
"""

import dataclasses

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


@dataclasses.dataclass(frozen=True)
class ExchangeTables:
    """What u devices do.

    Attributes:
        send: For every device, the tokens of its shard in the order in which it sends them: first those to device 0;
            padded by 0.
        sizes: Tokens from each device to each other.
        receive: For every device and token of its shard, which of the tokens received it is, by sender; -1 for none.
    """

    send: Int[np.ndarray, "u s"]
    sizes: Int[np.ndarray, "u u"]
    receive: Int[np.ndarray, "u r"]


def most_sent(source: TokenShards, target: TokenShards) -> int:
    """The most tokens that a device can have to send: each of its own to its share of a target shard's devices."""
    return source.size * -(-target.copies // source.copies)


def exchange_tables(
    sent: Int[np.ndarray, " k"], received: Int[np.ndarray, " k"], source: TokenShards, target: TokenShards, devices: int
) -> ExchangeTables:
    """The tables of an exchange in which token `sent[i]` of the source becomes token `received[i]` of the target.

    The devices of a target shard take turns among those of a source shard. Tokens between two devices keep their order.

    Args:
        sent, received: Each token once.
        source, target: Both ends.
        devices: Number u of devices.
    """
    send: list[list[np.ndarray]] = [[] for _ in range(devices)]
    sizes = np.zeros((devices, devices), np.int32)
    receive = np.full((devices, target.size), -1, np.int32)
    source_shard, target_shard = sent // source.size, received // target.size
    shards = np.array(source.devices)  # [shards, copies]
    shard_and_copy = {
        device: (shard, copy) for shard, held in enumerate(target.devices) for copy, device in enumerate(held)
    }
    for device in sorted(shard_and_copy):
        shard, copy = shard_and_copy[device]
        tokens = np.flatnonzero(target_shard == shard)
        senders = shards[source_shard[tokens], copy % source.copies]
        by_sender = np.argsort(senders, kind="stable")
        tokens, senders = tokens[by_sender], senders[by_sender]
        receive[device, received[tokens] % target.size] = np.arange(len(tokens))
        sizes[:, device] = np.bincount(senders, minlength=devices)
        ends = np.cumsum(sizes[:, device])
        for sender in np.flatnonzero(sizes[:, device]).tolist():
            send[sender].append(sent[tokens[ends[sender] - sizes[sender, device] : ends[sender]]] % source.size)
    padded = np.zeros((devices, most_sent(source, target)), np.int32)
    for sender, parts in enumerate(send):
        if parts:
            padded[sender, : sum(map(len, parts))] = np.concatenate(parts)
    return ExchangeTables(padded, sizes, receive)
