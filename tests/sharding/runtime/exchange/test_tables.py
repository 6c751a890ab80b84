"""Exchange tables by brute force: the exchange that they describe, made token by token."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sharding.runtime.exchange.tables import ExchangeTables, TokenRuns, TokenShards, exchange_tables, most_sent


@st.composite
def exchanges(draw):
    """Arguments of two `TokenShards` on devices that they may share, and the runs of tokens between them."""
    devices = draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    ends = []
    for _ in range(2):
        copies = draw(st.integers(1, devices))
        shards = draw(st.integers(1, devices // copies))
        held = random.permutation(devices).tolist()
        rows = [tuple(sorted(held[shard * copies : (shard + 1) * copies])) for shard in range(shards)]
        ends.append((tuple(rows), draw(st.integers(1, 5))))
    runs = []  # (first token at the source, at the target, length): next to each other, in another order at the target
    rooms = [list(range(0, size * len(rows), size)) for rows, size in ends]  # each row has one shard's tokens
    for sent, received in zip(*(random.permutation(room).tolist() for room in rooms), strict=False):
        lengths = random.multinomial(min(size for _, size in ends), [0.3, 0.4, 0.3])
        begins = np.cumsum(lengths) - lengths
        turned = np.cumsum(lengths[::-1]) - lengths[::-1]
        runs += zip(sent + begins, received + turned[::-1], lengths, strict=True)
    random.shuffle(runs)
    sent, received, lengths = np.array([run for run in runs if run[2]], int).reshape(-1, 3).T
    return (*ends, sent, received, lengths, devices)


def carry_out(tables: ExchangeTables, source: TokenShards) -> dict[int, list[int]]:
    """By device of the target, the number of the token at each of its places, -1 for none."""
    devices = len(tables.sizes)
    shard_of = {device: shard for shard, held in enumerate(source.devices) for device in held}
    inbox: dict[int, list[int]] = {device: [] for device in range(devices)}
    for sender in tables.send:
        outgoing = iter(tables.send[sender].tolist())
        for receiver in range(devices):
            for _ in range(tables.sizes[sender, receiver]):
                inbox[receiver].append(shard_of[sender] * source.size + next(outgoing))
    return {
        device: [inbox[device][number - 1] if number else -1 for number in receive.tolist()]
        for device, receive in tables.receive.items()
    }


def every_token(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return np.array([token for begin, n in zip(first, lengths, strict=True) for token in range(begin, begin + n)], int)


@given(exchanges())
def test_every_device_of_the_target_gets_its_tokens_each_once(exchange):
    *ends, sent, received, lengths, devices = exchange
    source, target = (TokenShards(*end) for end in ends)
    runs = TokenRuns(sent, received, lengths)
    tables = exchange_tables(runs, source, target, devices, range(devices))
    sent, received = (every_token(first, lengths) for first in (sent, received))
    expected = np.full(len(target.devices) * target.size, -1)
    expected[received] = sent
    carried = carry_out(tables, source)
    for shard, held in enumerate(target.devices):
        for device in held:
            assert carried[device] == expected[shard * target.size : (shard + 1) * target.size].tolist()
    for device in range(devices):  # a process makes the tables of its own devices alone
        local_tables = exchange_tables(runs, source, target, devices, [device])
        for some, all_ in ((local_tables.send, tables.send), (local_tables.receive, tables.receive)):
            assert set(some) == {device} & set(all_)
            assert all(np.array_equal(some[rank], all_[rank]) for rank in some)
    # No byte too much, and no device sends more than its table holds.
    assert tables.sizes.sum() == len(sent) * target.copies
    assert tables.sizes.sum(axis=1).max(initial=0) <= most_sent(source, target)
    assert all(len(send) == most_sent(source, target) for send in tables.send.values())
