"""Hops: an array from any sharding to any other, on the same, some of the same, or other devices.

A gradient comes back by the hop in the other direction: a hop is the identity on the global array, and so is its
transpose.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.transfer import Box, Transfer, plan_transfer

TRANSPORTS = ("auto", "device_put", "ppermute")
_AXIS = "device"


class IdentityHop:
    """Source and target hold the same boxes on the same devices: the shards stay, under the target's sharding."""

    def __init__(self, source: NamedSharding, target: NamedSharding, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.ends = _Ends(source, target, shape, dtype)

    def __call__(self, array: jax.Array | None) -> jax.Array | None:
        """The array on the target; it shares its buffers with the one given."""
        if not self.ends.owns_any:
            return None
        return self.ends.arrived(self.ends.departing(array))


class DevicePutHop:
    """`jax.device_put`, the quickest where one process owns all devices; shards that stay may share their buffers."""

    def __init__(self, source: NamedSharding, target: NamedSharding, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.ends = _Ends(source, target, shape, dtype)
        foreign = [d for d in self.ends.devices if d.process_index != jax.process_index()]
        if foreign:
            raise ValueError(
                f"device_put cannot reach {foreign[0]}, which belongs to process {foreign[0].process_index}; "
                'use the transport "ppermute"'
            )

    def __call__(self, array: jax.Array | None) -> jax.Array:
        """The array on the target."""
        self.ends.departing(array)
        return jax.device_put(array, self.ends.target)


class PermuteHop:
    """`lax.ppermute` in rounds over the union of both meshes, each process taking part with its own devices.

    The union's devices stand in the order of their ids, so that both directions between two meshes use one
    communicator. All processes that own devices of either mesh must call the hop, in the same order for one pair.
    """

    def __init__(self, source: NamedSharding, target: NamedSharding, shape: tuple[int, ...], dtype: np.dtype) -> None:
        ends = self.ends = _Ends(source, target, shape, dtype)
        union = Mesh(np.array(ends.devices), (_AXIS,))
        self._sharding = NamedSharding(union, P(_AXIS))
        self._sent = _at_least_1d(source.shard_shape(shape))
        received = _at_least_1d(target.shard_shape(shape))
        # The whole is the sources' shards joined along the leading dimension; pure receivers add zeros of their shape.
        self._joined = (len(ends.devices) * self._sent[0], *self._sent[1:])
        self._blanks = {
            device: jax.device_put(np.zeros(self._sent, dtype), device)
            for device in ends.local
            if device not in ends.source_boxes
        }
        transfer = plan_transfer(ends.by_id(ends.source_boxes), ends.by_id(ends.target_boxes))
        body = _permute(transfer, [device.id for device in ends.devices], received, dtype)
        # Not donated: the blanks are used again, and donating the joined array crashed jax 0.10.2 across processes.
        self._move = jax.jit(
            jax.shard_map(body, mesh=union, in_specs=P(_AXIS), out_specs=P(_AXIS), axis_names={_AXIS}, check_vma=True)
        )

    def __call__(self, array: jax.Array | None) -> jax.Array | None:
        """The array on the target: a handle where this process owns none of it, None where it owns neither end."""
        ends = self.ends
        if not ends.owns_any:
            return None
        shards = self._blanks | ends.departing(array)
        if not ends.shape:
            shards = {device: jnp.reshape(shard, self._sent) for device, shard in shards.items()}
        joined = jax.make_array_from_single_device_arrays(
            self._joined, self._sharding, [shards[device] for device in ends.local], dtype=ends.dtype
        )
        moved = {shard.device: shard.data for shard in self._move(joined).addressable_shards}
        if not ends.shape:
            moved = {device: jnp.reshape(shard, ()) for device, shard in moved.items()}
        return ends.arrived(moved)


Hop = IdentityHop | DevicePutHop | PermuteHop


def make_hop(
    source: NamedSharding,
    target: NamedSharding,
    shape: tuple[int, ...],
    dtype: jax.typing.DTypeLike,
    transport: str = "auto",
) -> Hop:
    """A function from an array on `source` to the same array on `target`; the hop back has the two exchanged.

    Processes that own no device of the source call it with None or a handle. No call waits for another; every
    process that owns a device of either end must make it.

    Args:
        source, target: Any shardings of the whole array.
        shape, dtype: Of the whole array.
        transport: `device_put`, `ppermute`, or `auto`: `device_put` where this process owns all devices, else
            `ppermute`. Where no shard has to move, none is used.
    """
    if transport not in TRANSPORTS:
        raise ValueError(f"transport {transport!r}; choose from {', '.join(TRANSPORTS)}")
    kind = np.dtype(dtype)
    if _boxes(source, shape) == _boxes(target, shape):
        return IdentityHop(source, target, shape, kind)
    if transport == "auto":
        devices = source.device_set | target.device_set
        transport = "device_put" if all(d.process_index == jax.process_index() for d in devices) else "ppermute"
    return (DevicePutHop if transport == "device_put" else PermuteHop)(source, target, shape, kind)


def blank(hop: Hop) -> jax.Array | None:
    """Zeros at the source of a hop, to try it with; None where this process owns no device of the source."""
    return hop.ends.blank()


class _Ends:
    """Both ends of a hop: their devices and boxes, and arrays taken apart at one and put together at the other."""

    def __init__(self, source: NamedSharding, target: NamedSharding, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.source, self.target, self.shape, self.dtype = source, target, tuple(shape), dtype
        self.source_boxes, self.target_boxes = _boxes(source, shape), _boxes(target, shape)
        self.devices = sorted(source.device_set | target.device_set, key=lambda device: device.id)
        self.local = [device for device in self.devices if device.process_index == jax.process_index()]
        self.owns_any = bool(self.local)
        self._sends = any(device in self.source_boxes for device in self.local)
        self._arrives = [device for device in self.local if device in self.target_boxes]

    def by_id(self, boxes: Mapping[jax.Device, Box]) -> list[tuple[int, Box]]:
        return [(device.id, boxes[device]) for device in self.devices if device in boxes]

    def departing(self, array: jax.Array | None) -> dict[jax.Device, jax.Array]:
        """This process's shards at the source. Raises ValueError if the array is not what the hop was made for."""
        if array is None:
            if self._sends:
                raise ValueError(f"a hop from {self.source} got None, but this process owns devices of its source")
            return {}
        if array.shape != self.shape or array.dtype != self.dtype:
            raise ValueError(
                f"a hop of {self.dtype}{list(self.shape)} got {array.dtype}{list(array.shape)}; make one for it"
            )
        if array.sharding != self.source and not array.sharding.is_equivalent_to(self.source, array.ndim):
            raise ValueError(f"a hop from {self.source} got an array on {array.sharding}; make one from there")
        return {shard.device: shard.data for shard in array.addressable_shards}

    def blank(self) -> jax.Array | None:
        if not self._sends:
            return None
        return jax.make_array_from_callback(
            self.shape, self.source, lambda index: np.zeros(self.source.shard_shape(self.shape), self.dtype)
        )

    def arrived(self, shards: Mapping[jax.Device, jax.Array]) -> jax.Array:
        return jax.make_array_from_single_device_arrays(
            self.shape, self.target, [shards[device] for device in self._arrives], dtype=self.dtype
        )


def _boxes(sharding: NamedSharding, shape: tuple[int, ...]) -> dict[jax.Device, Box]:
    return {
        device: tuple(part.indices(extent)[:2] for part, extent in zip(index, shape, strict=True))
        for device, index in sharding.devices_indices_map(tuple(shape)).items()
    }


def _at_least_1d(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape or (1,)


def _permute(
    transfer: Transfer, devices: list[int], received: tuple[int, ...], dtype: np.dtype
) -> Callable[[jax.Array], jax.Array]:
    """The body each device runs: per round, cut out a chunk, permute, and put what came where it belongs."""
    position = {device: place for place, device in enumerate(devices)}
    chunk = _at_least_1d(transfer.chunk)
    tables = (len(transfer.rounds), len(devices), len(chunk))
    cuts, puts = np.zeros(tables, np.int32), np.zeros(tables, np.int32)
    receives = np.zeros(tables[:2], bool)
    pairs: list[list[tuple[int, int]]] = []
    for number, moves in enumerate(transfer.rounds):
        pairs.append([(position[move.source], position[move.target]) for move in moves])
        for move, (sender, receiver) in zip(moves, pairs[-1], strict=True):
            cuts[number, sender] = move.source_start or (0,)
            puts[number, receiver] = move.target_start or (0,)
            receives[number, receiver] = True

    def body(block: jax.Array) -> jax.Array:
        place = lax.axis_index(_AXIS)
        out = lax.pcast(jnp.zeros(received, dtype), _AXIS, to="varying")
        for number, moves in enumerate(pairs):
            cut = lax.dynamic_slice(block, tuple(jnp.asarray(cuts)[number, place]), chunk)
            came = lax.ppermute(cut, _AXIS, moves)
            put = tuple(jnp.asarray(puts)[number, place])
            # Selecting chunks, not whole blocks, lets XLA update the block in place.
            kept = lax.select(jnp.asarray(receives)[number, place], came, lax.dynamic_slice(out, put, chunk))
            out = lax.dynamic_update_slice(out, kept, put)
        return out

    return body
