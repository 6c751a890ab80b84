"""Hops: an array from any sharding to any other, on the same devices, on some of the same, or on others.

A hop is the identity on the global array, and so is its transpose: a gradient comes back by the hop in the other
direction. The engine makes the hops of every channel and tied parameter; the executor calls them.
"""

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.runtime.transfer_plan import Box, Transfer, plan_transfer

Transport = Literal["auto", "device_put", "ppermute"]
TRANSPORTS: tuple[str, ...] = get_args(Transport)
_AXIS = "device"


class _ArrayHop:
    """A hop of a whole array between two shardings of it."""

    def __init__(self, source: NamedSharding, target: NamedSharding, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.endpoints = _Endpoints(source, target, shape, dtype)

    def __call__(self, array: jax.Array | None) -> jax.Array | None:
        """The array on the target."""
        raise NotImplementedError

    def send_zeros(self) -> jax.Array | None:
        """Sends zeros, to try the hop."""
        return self(self.endpoints.zeros())


class IdentityHop(_ArrayHop):
    """A hop between shardings that hold the same boxes on the same devices: it only replaces the sharding."""

    def __call__(self, array: jax.Array | None) -> jax.Array | None:
        """The array on the target; it shares its buffers with the one given."""
        if not self.endpoints.has_local_devices:
            return None
        return self.endpoints.assemble(self.endpoints.source_shards(array))


class DevicePutHop(_ArrayHop):
    """`jax.device_put`, the quickest where one process owns all devices; shards that stay may share their buffers.

    Where the target has other shards on as many devices, a program makes them at the source first: `device_put` then
    copies from device to device, and would otherwise wait for the array and take it through the host.
    """

    def __init__(self, source: NamedSharding, target: NamedSharding, shape: tuple[int, ...], dtype: np.dtype) -> None:
        super().__init__(source, target, shape, dtype)
        foreign = [device for device in self.endpoints.devices if device.process_index != jax.process_index()]
        if foreign:
            raise ValueError(
                f"device_put cannot reach {foreign[0]}, which belongs to process {foreign[0].process_index}; "
                'use the transport "ppermute"'
            )
        self._reshard = _reshard_at_source(source, target, shape)

    def __call__(self, array: jax.Array | None) -> jax.Array:
        """The array on the target."""
        checked = self.endpoints.check(array)
        return jax.device_put(self._reshard(checked) if self._reshard else checked, self.endpoints.target)


class PermuteHop(_ArrayHop):
    """`lax.ppermute` in rounds over the union of both meshes, each process joining with its own devices.

    The union's devices are ordered by id, so that both directions between two meshes use one communicator. All
    processes that own devices of either mesh must call the hop, and call the hops of one pair of meshes in the same
    order.

    Attributes:
        arrived: `[1]` on each device, of what the last call moved: small, so that it can be kept to see whether that
            call is finished. None before the first call.
    """

    def __init__(self, source: NamedSharding, target: NamedSharding, shape: tuple[int, ...], dtype: np.dtype) -> None:
        super().__init__(source, target, shape, dtype)
        endpoints = self.endpoints
        union = Mesh(np.array(endpoints.devices), (_AXIS,))
        self._union_sharding = NamedSharding(union, P(_AXIS))
        self._source_shard_shape = _at_least_1d(source.shard_shape(shape))
        target_shard_shape = _at_least_1d(target.shard_shape(shape))
        # The operand is the source's shards concatenated along the leading dimension; devices that only receive
        # contribute zeros of the same shape.
        self._operand_shape = (len(endpoints.devices) * self._source_shard_shape[0], *self._source_shard_shape[1:])
        self._zero_shards = {
            device: jax.device_put(np.zeros(self._source_shard_shape, dtype), device)
            for device in endpoints.local_devices
            if device not in endpoints.source_boxes
        }
        transfer = plan_transfer(endpoints.by_id(endpoints.source_boxes), endpoints.by_id(endpoints.target_boxes))
        body = _permute_in_rounds(transfer, [device.id for device in endpoints.devices], target_shard_shape, dtype)
        # Not donated: the zeros are used again, and donating the operand crashed jax 0.10.2 across processes.
        self._program = jax.jit(
            jax.shard_map(body, mesh=union, in_specs=P(_AXIS), out_specs=P(_AXIS), axis_names={_AXIS}, check_vma=True)
        )
        self.arrived: jax.Array | None = None

    def __call__(self, array: jax.Array | None) -> jax.Array | None:
        """The array on the target.

        A process that owns no device of the target gets an array without local shards; one that owns no device of
        either end gets None.
        """
        endpoints = self.endpoints
        if not endpoints.has_local_devices:
            return None
        shards = self._zero_shards | endpoints.source_shards(array)
        if not endpoints.shape:
            shards = {device: jnp.reshape(shard, self._source_shard_shape) for device, shard in shards.items()}
        operand = jax.make_array_from_single_device_arrays(
            self._operand_shape,
            self._union_sharding,
            [shards[device] for device in endpoints.local_devices],
            dtype=endpoints.dtype,
        )
        moved, self.arrived = self._program(operand)
        received = {shard.device: shard.data for shard in moved.addressable_shards}
        if not endpoints.shape:
            received = {device: jnp.reshape(shard, ()) for device, shard in received.items()}
        return endpoints.assemble(received)


Hop = IdentityHop | DevicePutHop | PermuteHop


def make_hop(
    source: NamedSharding,
    target: NamedSharding,
    shape: tuple[int, ...],
    dtype: jax.typing.DTypeLike,
    transport: str = "auto",
) -> Hop:
    """A function from an array on `source` to the same array on `target`; for the hop back exchange the two.

    Processes that own no device of the source call it with None or with the array that another hop gave them. No call
    waits for another; every process that owns a device of either end must make it.

    Args:
        source, target: Any shardings of the whole array.
        shape: Shape of the whole array.
        dtype: Its type.
        transport: `device_put`, `ppermute`, or `auto`: `device_put` where this process owns all devices, else
            `ppermute`. Where no shard has to move, neither is used.

    Raises:
        ValueError: There is no such transport, or `device_put` cannot reach all devices.
    """
    if transport not in TRANSPORTS:
        raise ValueError(f"transport {transport!r}; choose from {', '.join(TRANSPORTS)}")
    array_dtype = np.dtype(dtype)
    if _boxes(source, shape) == _boxes(target, shape):
        return IdentityHop(source, target, shape, array_dtype)
    if transport == "auto":
        devices = source.device_set | target.device_set
        one_process = all(device.process_index == jax.process_index() for device in devices)
        transport = "device_put" if one_process else "ppermute"
    return (DevicePutHop if transport == "device_put" else PermuteHop)(source, target, shape, array_dtype)


class _Endpoints:
    """Both ends of a hop: their devices and boxes; splits arrays at the source and assembles them at the target."""

    def __init__(self, source: NamedSharding, target: NamedSharding, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.source, self.target, self.shape, self.dtype = source, target, tuple(shape), dtype
        self.source_boxes, self.target_boxes = _boxes(source, shape), _boxes(target, shape)
        self.devices = sorted(source.device_set | target.device_set, key=lambda device: device.id)
        self.local_devices = [device for device in self.devices if device.process_index == jax.process_index()]
        self.has_local_devices = bool(self.local_devices)
        self._is_source = any(device in self.source_boxes for device in self.local_devices)
        self._local_targets = [device for device in self.local_devices if device in self.target_boxes]

    def by_id(self, boxes: Mapping[jax.Device, Box]) -> list[tuple[int, Box]]:
        return [(device.id, boxes[device]) for device in self.devices if device in boxes]

    def source_shards(self, array: jax.Array | None) -> dict[jax.Device, jax.Array]:
        """This process's shards at the source. Raises ValueError if the array is not what the hop was made for."""
        if array is None and not self._is_source:
            return {}
        return {shard.device: shard.data for shard in self.check(array).addressable_shards}

    def check(self, array: jax.Array | None) -> jax.Array:
        """The array that a process with devices of the source gives. Raises ValueError as `source_shards` does."""
        if array is None:
            raise ValueError(f"a hop from {self.source} got None, but this process owns devices of its source")
        if array.shape != self.shape or array.dtype != self.dtype:
            raise ValueError(
                f"a hop of {self.dtype}{list(self.shape)} got {array.dtype}{list(array.shape)}; make one for it"
            )
        if array.sharding != self.source and not array.sharding.is_equivalent_to(self.source, array.ndim):
            raise ValueError(f"a hop from {self.source} got an array on {array.sharding}; make one from there")
        return array

    def zeros(self) -> jax.Array | None:
        if not self._is_source:
            return None
        return jax.make_array_from_callback(
            self.shape, self.source, lambda index: np.zeros(self.source.shard_shape(self.shape), self.dtype)
        )

    def assemble(self, shards: Mapping[jax.Device, jax.Array]) -> jax.Array:
        return jax.make_array_from_single_device_arrays(
            self.shape, self.target, [shards[device] for device in self._local_targets], dtype=self.dtype
        )


def _reshard_at_source(
    source: NamedSharding, target: NamedSharding, shape: tuple[int, ...]
) -> Callable[[jax.Array], jax.Array] | None:
    """The program that gives the source's devices, in order, the shards of the target's; None if it is not needed.

    Nor if it is impossible: the devices are not as many, or partly the same.
    """
    devices, target_devices = np.array(source.mesh.devices), np.array(target.mesh.devices)
    if devices.size != target_devices.size or source.device_set & target.device_set:
        return None
    mesh = Mesh(devices.reshape(target_devices.shape), target.mesh.axis_names)
    resharded = NamedSharding(mesh, target.spec)
    if _boxes(resharded, shape) == _boxes(source, shape):
        return None

    def reshard(array: jax.Array) -> jax.Array:
        return array

    return jax.jit(reshard, out_shardings=resharded)


def _boxes(sharding: NamedSharding, shape: tuple[int, ...]) -> dict[jax.Device, Box]:
    return {
        device: tuple(part.indices(extent)[:2] for part, extent in zip(index, shape, strict=True))
        for device, index in sharding.devices_indices_map(tuple(shape)).items()
    }


def _at_least_1d(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape or (1,)


def _permute_in_rounds(
    transfer: Transfer, devices: list[int], target_shard_shape: tuple[int, ...], dtype: np.dtype
) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """The function that every device runs: in each round it cuts out a chunk, permutes, and writes the received chunk.

    It returns the target's shard, and one number of it.
    """
    rank_of = {device: rank for rank, device in enumerate(devices)}
    chunk = _at_least_1d(transfer.chunk)
    table_shape = (len(transfer.rounds), len(devices), len(chunk))
    read_starts, write_starts = (
        np.zeros(table_shape, np.int32),
        np.zeros(table_shape, np.int32),
    )  # [rounds, ranks, dims]
    receives = np.zeros(table_shape[:2], bool)  # [rounds, ranks]
    permutations: list[list[tuple[int, int]]] = []
    for round_index, moves in enumerate(transfer.rounds):
        permutations.append([(rank_of[move.source], rank_of[move.target]) for move in moves])
        for move, (sender, receiver) in zip(moves, permutations[-1], strict=True):
            read_starts[round_index, sender] = move.source_start or (0,)
            write_starts[round_index, receiver] = move.target_start or (0,)
            receives[round_index, receiver] = True

    def body(source_shard: jax.Array) -> tuple[jax.Array, jax.Array]:
        rank = lax.axis_index(_AXIS)
        target_shard = lax.pcast(jnp.zeros(target_shard_shape, dtype), _AXIS, to="varying")
        for round_index, permutation in enumerate(permutations):
            read_start = tuple(jnp.asarray(read_starts)[round_index, rank])
            received = lax.ppermute(lax.dynamic_slice(source_shard, read_start, chunk), _AXIS, permutation)
            write_start = tuple(jnp.asarray(write_starts)[round_index, rank])
            # Selecting between chunks, not between whole shards, lets XLA update the shard in place.
            new_chunk = lax.select(
                jnp.asarray(receives)[round_index, rank], received, lax.dynamic_slice(target_shard, write_start, chunk)
            )
            target_shard = lax.dynamic_update_slice(target_shard, new_chunk, write_start)
        first = lax.slice(target_shard, (0,) * target_shard.ndim, (1,) * target_shard.ndim)
        return target_shard, jnp.reshape(first, 1)

    return body
