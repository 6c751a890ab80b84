"""Hops in one process: any sharding to any other, the same bits by both transports, the transpose on the way back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.runtime.hops import DevicePutHop, IdentityHop, PermuteHop, make_hop
from tests.sharding.runtime.submeshes import stage_mesh

SHAPE = (12, 8, 2)
ROWS, SEQUENCE, BOTH = P("data"), P("data", "tensor"), P(("data", "tensor"))

# (devices, dp, tp, spec) of source and target
CASES = {
    "dp 3 to 2": ((range(3), 3, 1, ROWS), (range(3, 5), 2, 1, ROWS)),
    "dp 2 to 3": ((range(2), 2, 1, ROWS), (range(2, 5), 3, 1, ROWS)),
    "dp 4 to 1": ((range(4), 4, 1, ROWS), (range(4, 5), 1, 1, ROWS)),
    "dp 1 to 4": ((range(1), 1, 1, ROWS), (range(1, 5), 4, 1, ROWS)),
    "tp 2 to 1": ((range(4), 2, 2, ROWS), (range(4, 6), 2, 1, ROWS)),
    "tp 1 to 2": ((range(2), 2, 1, ROWS), (range(2, 6), 2, 2, ROWS)),
    "replicas to replicas": ((range(4), 2, 2, ROWS), (range(4, 8), 1, 4, ROWS)),
    "sequence over tensor": ((range(4), 2, 2, SEQUENCE), (range(4, 8), 1, 4, SEQUENCE)),
    "sequence to rows": ((range(2), 1, 2, SEQUENCE), (range(2, 6), 2, 2, BOTH)),
    "last dimension": ((range(2), 1, 2, P(None, None, "tensor")), (range(2, 5), 3, 1, ROWS)),
    "overlapping": ((range(4), 2, 2, SEQUENCE), (range(2, 5), 3, 1, ROWS)),
    "same devices, other layout": ((range(4), 2, 2, ROWS), (range(4), 4, 1, ROWS)),
    "order of devices reversed": ((range(4), 4, 1, ROWS), (range(3, -1, -1), 4, 1, ROWS)),
}


def sharding(devices, dp, tp, spec):
    everything = jax.devices()
    return NamedSharding(stage_mesh([everything[index] for index in devices], dp, tp), spec)


def patterns(dtype, shape=SHAPE):
    """Every kind of bits, NaNs among them."""
    size = np.dtype(dtype).itemsize
    raw = np.random.default_rng(7).integers(0, 256, (*shape, size), np.uint8)
    raw = raw % 2 if np.dtype(dtype) == bool else raw
    return raw.reshape(*shape[:-1], -1).view(dtype).reshape(shape) if shape else raw.view(dtype).reshape(())


def raw_bytes(array):
    return np.ascontiguousarray(np.asarray(array)).tobytes()


@pytest.mark.parametrize("case", CASES)
def test_both_transports_carry_the_same_bits_there_and_back(case):
    source, target = (sharding(*end) for end in CASES[case])
    array = patterns(np.float32)
    sent = jax.device_put(array, source)
    arrivals = []
    for transport, kind in (("device_put", DevicePutHop), ("ppermute", PermuteHop)):
        there = make_hop(source, target, SHAPE, np.float32, transport)
        back = make_hop(target, source, SHAPE, np.float32, transport)
        assert type(there) is type(back) is kind
        for _ in range(2):
            arrived = there(sent)
            returned = back(arrived)
        assert (arrived.sharding, returned.sharding) == (target, source)
        for held in (arrived, returned):
            for shard in held.addressable_shards:
                assert raw_bytes(shard.data) == raw_bytes(array[shard.index])
        arrivals.append({shard.device: raw_bytes(shard.data) for shard in arrived.addressable_shards})
    assert arrivals[0] == arrivals[1]


@pytest.mark.parametrize("case", ["dp 3 to 2", "overlapping", "sequence over tensor"])
def test_the_hop_back_is_the_transpose(case):
    source, target = (sharding(*end) for end in CASES[case])
    whole = np.random.default_rng(3).integers(-9, 10, (2, *SHAPE)).astype(np.float32)
    x, y = jax.device_put(whole[0], source), jax.device_put(whole[1], target)
    there = make_hop(source, target, SHAPE, np.float32, "ppermute")
    back = make_hop(target, source, SHAPE, np.float32, "ppermute")
    # Small whole numbers: both sums are exact.
    assert float(jnp.vdot(there(x), y)) == float(jnp.vdot(x, back(y))) == float((whole[0] * whole[1]).sum())


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.int32, np.uint8, bool])
@pytest.mark.parametrize(
    ("shape", "specs"), [((), (P(), P())), ((1,), (P(), P())), ((1, 6), (P(None, "tensor"), P())), ((6,), (ROWS, P()))]
)
def test_small_arrays_of_any_type(dtype, shape, specs):
    source = sharding(range(4), 2, 2, specs[0])
    target = sharding(range(3, 6), 3, 1, specs[1])
    array = patterns(dtype, shape)
    arrived = make_hop(source, target, shape, dtype, "ppermute")(jax.device_put(array, source))
    assert arrived.dtype == array.dtype and arrived.shape == shape and arrived.sharding == target
    for shard in arrived.addressable_shards:
        assert raw_bytes(shard.data) == raw_bytes(array)


def test_where_nothing_moves_the_buffers_stay():
    source = sharding(range(4), 2, 2, ROWS)
    target = sharding(range(4), 2, 2, P("data", None))
    sent = jax.device_put(patterns(np.float32), source)
    hop = make_hop(source, target, SHAPE, np.float32)
    assert isinstance(hop, IdentityHop)
    arrived = hop(sent)
    assert arrived.sharding == target
    pointers = [[shard.data.unsafe_buffer_pointer() for shard in a.addressable_shards] for a in (sent, arrived)]
    assert pointers[0] == pointers[1]


@pytest.mark.parametrize("case", CASES)
def test_device_put_finds_every_shard_of_the_target_where_as_many_other_devices_send_it(case):
    source, target = (sharding(*end) for end in CASES[case])
    as_many_others = len(source.device_set) == len(target.device_set) and not source.device_set & target.device_set
    reshard = make_hop(source, target, SHAPE, np.float32, "device_put")._reshard
    assert (reshard is not None) == as_many_others
    if reshard is not None:
        sent = reshard(jax.device_put(patterns(np.float32), source))
        assert list(sent.sharding.mesh.devices.flat) == list(source.mesh.devices.flat)
        indices = [list(end.devices_indices_map(SHAPE).values()) for end in (sent.sharding, target)]
        assert indices[0] == indices[1]


def test_auto_takes_device_put_in_one_process():
    ends = [sharding(*end) for end in CASES["dp 3 to 2"]]
    assert isinstance(make_hop(*ends, SHAPE, np.float32), DevicePutHop)


def test_both_directions_use_one_order_of_devices():
    source, target = sharding(range(4, 7), 3, 1, ROWS), sharding(range(1, 3), 2, 1, ROWS)
    hops = [make_hop(*ends, SHAPE, np.float32, "ppermute") for ends in ((source, target), (target, source))]
    texts = [
        hop._program.lower(jax.ShapeDtypeStruct(hop._operand_shape, np.float32, sharding=hop._union_sharding)).as_text()
        for hop in hops
    ]
    assert [text.count("collective_permute") for text in texts] == [3, 3]
    assert [d.id for d in hops[0]._union_sharding.mesh.devices] == [d.id for d in hops[1]._union_sharding.mesh.devices]


@pytest.mark.parametrize("transport", ["device_put", "ppermute", "identity"])
def test_what_a_hop_was_not_made_for_is_refused(transport):
    source = sharding(range(3), 3, 1, ROWS)
    target = source if transport == "identity" else sharding(range(3, 5), 2, 1, ROWS)
    hop = make_hop(source, target, SHAPE, np.float32, "auto" if transport == "identity" else transport)
    array = np.zeros(SHAPE, np.float32)
    with pytest.raises(ValueError, match="got None, but this process owns"):
        hop(None)
    with pytest.raises(ValueError, match=r"a hop of float32\[12, 8, 2\] got int32\[12, 8, 2\]"):
        hop(jax.device_put(array.astype(np.int32), source))
    with pytest.raises(ValueError, match=r"got float32\[6, 8, 2\]"):
        hop(jax.device_put(array[:6], source))
    with pytest.raises(ValueError, match="a hop from .* got an array on"):
        hop(jax.device_put(array, sharding(range(2), 2, 1, ROWS)))


def test_an_unknown_transport_is_refused():
    ends = [sharding(*end) for end in CASES["dp 3 to 2"]]
    with pytest.raises(ValueError, match="transport 'mail'; choose from auto, device_put, ppermute"):
        make_hop(*ends, SHAPE, np.float32, "mail")
