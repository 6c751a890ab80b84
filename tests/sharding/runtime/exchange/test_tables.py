"""Exchange tables by brute force: the exchange that they describe, made token by token."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sharding.runtime.exchange.tables import ExchangeTables, TokenShards, exchange_tables, most_sent


@st.composite
def exchanges(draw):
    """Arguments of two `TokenShards` on devices that they may share, and pairs of tokens."""
    devices = draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    ends = []
    for _ in range(2):
        copies = draw(st.integers(1, devices))
        shards = draw(st.integers(1, devices // copies))
        held = random.permutation(devices).tolist()
        rows = [tuple(sorted(held[shard * copies : (shard + 1) * copies])) for shard in range(shards)]
        ends.append((tuple(rows), draw(st.integers(1, 5))))
    sizes = [len(rows) * size for rows, size in ends]
    count = draw(st.integers(0, min(sizes)))
    sent, received = (random.permutation(size)[:count] for size in sizes)
    return (*ends, sent, received, devices)


def carry_out(tables: ExchangeTables, source: TokenShards, target: TokenShards) -> dict[int, list[int]]:
    """By device of the target, the number of the token at each of its places, -1 for none."""
    devices = len(tables.sizes)
    shard_of = {device: shard for shard, held in enumerate(source.devices) for device in held}
    inbox: dict[int, list[int]] = {device: [] for device in range(devices)}
    for sender in range(devices):
        outgoing = iter(tables.send[sender].tolist())
        for receiver in range(devices):
            for _ in range(tables.sizes[sender, receiver]):
                inbox[receiver].append(shard_of[sender] * source.size + next(outgoing))
    return {
        device: [inbox[device][place] if place >= 0 else -1 for place in tables.receive[device].tolist()]
        for held in target.devices
        for device in held
    }


@given(exchanges())
def test_every_device_of_the_target_gets_its_tokens_each_once(exchange):
    *ends, sent, received, devices = exchange
    source, target = (TokenShards(*end) for end in ends)
    tables = exchange_tables(sent, received, source, target, devices)
    expected = np.full(len(target.devices) * target.size, -1)
    expected[received] = sent
    found = carry_out(tables, source, target)
    for shard, held in enumerate(target.devices):
        for device in held:
            assert found[device] == expected[shard * target.size : (shard + 1) * target.size].tolist()
    # No byte too much, and no device sends more than its table holds.
    assert tables.sizes.sum() == len(sent) * target.copies
    assert tables.sizes.sum(axis=1).max(initial=0) <= most_sent(source, target) == tables.send.shape[1]
