"""Exchange hops against a gather by NumPy, in one process of eight devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.runtime.exchange.exchange_hop import ExchangeEnd, ExchangeHop
from sharding.runtime.exchange.tables import TokenRuns


def end(devices: list[int], dp: int, rows: int, places: int) -> ExchangeEnd:
    """An end whose dp shards are each held by as many of the devices."""
    mesh = Mesh(np.array(jax.devices())[devices].reshape(dp, -1), ("data", "tensor"))
    return ExchangeEnd(NamedSharding(mesh, P("data")), (rows, places, 3))


ENDS = {
    "3 to 2 on other devices": (end([0, 1, 2], 3, 6, 4), end([3, 4, 5, 6], 2, 4, 6)),
    "2 to 3 on some of the same": (end([0, 1, 2, 3], 2, 2, 7), end([2, 3, 4], 3, 3, 5)),
    "1 to 8 on the same": (end(list(range(8)), 1, 2, 8), end(list(range(8)), 8, 8, 2)),
    "tensor ranks take turns": (end([0, 1, 2, 3], 2, 4, 3), end([4, 5, 6, 7], 1, 3, 4)),
    "devices in another order": (end([5, 0, 3], 3, 3, 4), end([7, 1], 2, 2, 6)),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("source", "target"), ENDS.values(), ids=list(ENDS))
def test_it_is_a_gather_and_the_way_back_its_transpose(source, target, dtype):
    random = np.random.default_rng(len(dtype))
    sizes = [int(np.prod(shards.shape[:2])) for shards in (source, target)]
    there, back = ExchangeHop(source, target, dtype), ExchangeHop(target, source, dtype)
    for count in (min(sizes), min(sizes) // 2, 0):
        sent, received = (random.permutation(size)[:count] for size in sizes)
        for hop, (begin, goal), tokens in (
            (there, (source, target), (sent, received)),
            (back, (target, source), (received, sent)),
        ):
            values = jnp.asarray(random.normal(size=begin.shape), dtype)
            tables = hop.make_tables(TokenRuns(*tokens, np.ones(count, int)))
            moved = hop(jax.device_put(values, begin.sharding), hop.place_tables(tables))
            expected = np.zeros((int(np.prod(goal.shape[:2])), 3), values.dtype)
            expected[tokens[1]] = np.asarray(values).reshape(-1, 3)[tokens[0]]
            assert moved.sharding == goal.sharding and moved.dtype == values.dtype
            for shard in moved.addressable_shards:  # each copy has the same bits
                np.testing.assert_array_equal(shard.data, expected.reshape(goal.shape)[shard.index])
    assert there.arrived is not None


def test_it_can_be_tried_without_a_batch():
    source, target = ENDS["3 to 2 on other devices"]
    moved = ExchangeHop(source, target, "float32").send_zeros()
    assert moved.shape == target.shape and not np.asarray(moved).any()
