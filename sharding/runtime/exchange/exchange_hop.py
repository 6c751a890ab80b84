"""The exchange hop: moves activations from the rows of one phase to the rows of another, as host-made tables say.

It is a gather on the global array: the transpose, for gradients, is the exchange with both ends swapped. A place of the
target that no token comes to is zero. The engine makes an exchange hop for each channel between phases whose rows
differ.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int

from pallas_kernels.ragged_all_to_all import exchange_rows
from sharding.runtime.exchange.tables import ExchangeTables, TokenRuns, TokenShards, exchange_tables, most_sent

_AXIS = "device"


@dataclasses.dataclass(frozen=True)
class ExchangeEnd:
    """The array at one end of an exchange.

    Attributes:
        sharding: Divides the rows, and nothing else.
        shape: `[rows, places, ...]`.
    """

    sharding: NamedSharding
    shape: tuple[int, ...]

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """Shape of a device's shard."""
        return self.sharding.shard_shape(self.shape)

    @property
    def devices(self) -> frozenset[jax.Device]:
        """Devices that hold a shard."""
        return frozenset(self.sharding.device_set)

    def token_shards(self, rank_of: Mapping[jax.Device, int]) -> TokenShards:
        """Returns the shards of this end, with devices given by their ranks."""
        held: dict[int, list[int]] = {}
        for device, index in self.sharding.devices_indices_map(self.shape).items():
            held.setdefault(index[0].indices(self.shape[0])[0], []).append(rank_of[device])
        rows, places, *_ = self.shard_shape
        return TokenShards(tuple(tuple(sorted(held[first])) for first in sorted(held)), rows * places)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["send", "sizes", "receive"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class PlacedTables:
    """`ExchangeTables` on the devices of both ends; each device holds its own tables."""

    send: Int[Array, "u s"]
    sizes: Int[Array, "u u"]
    receive: Int[Array, "u r"]


class ExchangeHop:
    """One program on the mesh over both ends: gather, ragged all-to-all, gather.

    All processes that own devices of either end must call it, in the same order.

    Args:
        source, target: Both ends.
        dtype: Type of the array.

    Attributes:
        arrived: `[1]` on each device, of what the last call moved; None before the first call.
    """

    def __init__(self, source: ExchangeEnd, target: ExchangeEnd, dtype: jax.typing.DTypeLike) -> None:
        self.source, self.target, self.dtype = source, target, np.dtype(dtype)
        self._devices = sorted(source.devices | target.devices, key=lambda device: device.id)
        rank_of = {device: rank for rank, device in enumerate(self._devices)}
        self._local = {device: rank for device, rank in rank_of.items() if device.process_index == jax.process_index()}
        union = Mesh(np.array(self._devices), (_AXIS,))
        self._by_device, self._replicated = NamedSharding(union, P(_AXIS)), NamedSharding(union, P())
        self._source_shards, self._target_shards = source.token_shards(rank_of), target.token_shards(rank_of)
        shard_shape = source.shard_shape
        self._operand_shape = (len(self._devices) * shard_shape[0], *shard_shape[1:])
        # Operands of devices that do not send, or do not receive: made once.
        only_target = [device for device in self._local if device not in source.devices]
        only_source = [device for device in self._local if device not in target.devices]
        most, places = most_sent(self._source_shards, self._target_shards), self._target_shards.size
        self._zero_shards = _on_each(only_target, np.zeros(shard_shape, self.dtype))
        self._no_send = _on_each(only_target, np.zeros((1, most), np.int32))
        self._no_receive = _on_each(only_source, np.zeros((1, places), np.int32))
        body = functools.partial(_exchange, target_shape=target.shard_shape)
        specs = (P(_AXIS), P(_AXIS), P(), P(_AXIS))
        self._program = jax.jit(
            jax.shard_map(body, mesh=union, in_specs=specs, out_specs=P(_AXIS), axis_names={_AXIS}, check_vma=True)
        )
        self.arrived: jax.Array | None = None

    def make_tables(self, runs: TokenRuns) -> ExchangeTables | None:
        """The tables of a call, in which these tokens are exchanged, numbered through all rows at either end.

        By NumPy alone; None if this process owns no device of either end.
        """
        if not self._local:
            return None
        return exchange_tables(
            runs, self._source_shards, self._target_shards, len(self._devices), list(self._local.values())
        )

    def place_tables(self, tables: ExchangeTables | None) -> PlacedTables | None:
        """The tables of `make_tables` on the devices of this process."""
        if tables is None:
            return None
        sizes = jax.make_array_from_callback(tables.sizes.shape, self._replicated, lambda index: tables.sizes[index])
        return PlacedTables(
            self._place(tables.send, self._no_send), sizes, self._place(tables.receive, self._no_receive)
        )

    def _place(self, tables: Mapping[int, np.ndarray], idle: Mapping[jax.Device, jax.Array]) -> jax.Array:
        """Returns the tables with one for each device; devices without one do nothing."""
        placed = [
            jax.device_put(tables[rank][None], device) if rank in tables else idle[device]
            for device, rank in self._local.items()
        ]
        shape = (len(self._devices), placed[0].shape[1])
        return jax.make_array_from_single_device_arrays(shape, self._by_device, placed)

    def __call__(self, array: jax.Array | None, tables: PlacedTables | None) -> jax.Array | None:
        """The array on the target, as `make_hop`'s hops return it.

        Args:
            array: The array on the source; None if this process owns no device of it.
            tables: From `place_tables`.
        """
        if not self._local:
            return None
        assert tables is not None
        shards = dict(self._zero_shards)
        if array is not None:
            shards |= {shard.device: shard.data for shard in array.addressable_shards}
        operand = jax.make_array_from_single_device_arrays(
            self._operand_shape, self._by_device, [shards[device] for device in self._local], dtype=self.dtype
        )
        moved, self.arrived = self._program(operand, tables.send, tables.sizes, tables.receive)
        received = {shard.device: shard.data for shard in moved.addressable_shards}
        return jax.make_array_from_single_device_arrays(
            self.target.shape,
            self.target.sharding,
            [received[device] for device in self._local if device in self.target.devices],
            dtype=self.dtype,
        )

    def send_zeros(self) -> jax.Array | None:
        """Sends all tokens that both ends have room for, as zeros, to try the hop."""
        count = min(int(np.prod(self.source.shape[:2])), int(np.prod(self.target.shape[:2])))
        zeros = None
        if any(device in self.source.devices for device in self._local):
            shard = np.zeros(self.source.shard_shape, self.dtype)
            zeros = jax.make_array_from_callback(self.source.shape, self.source.sharding, lambda _: shard)
        tokens = np.arange(count)
        return self(zeros, self.place_tables(self.make_tables(TokenRuns(tokens, tokens, np.ones_like(tokens)))))


def _on_each(devices: Iterable[jax.Device], array: np.ndarray) -> dict[jax.Device, jax.Array]:
    return {device: jax.device_put(array, device) for device in devices}


def _exchange(
    source_shard: jax.Array,
    send: jax.Array,
    sizes: jax.Array,
    receive: jax.Array,
    target_shape: tuple[int, ...],
) -> tuple[jax.Array, jax.Array]:
    """The function that every device runs; it returns its shard of the target, and one number of it."""
    tokens = source_shard.reshape(-1, *source_shard.shape[2:])  # [tokens, ...]
    received = exchange_rows(tokens[send[0]], sizes, rows=receive.shape[1], axis=_AXIS)  # [r, ...]
    is_token = (receive[0] > 0).reshape(-1, *(1,) * (received.ndim - 1))
    placed = jnp.where(is_token, received[jnp.maximum(receive[0] - 1, 0)], jnp.zeros((), received.dtype))
    return placed.reshape(target_shape), placed.reshape(-1)[:1]
