"""The check that each local device computes and stores correctly: a matmul with a known result, and memory read back.

One of the checks of `checks.py`, on every process.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

DTYPES = ("float32", "bfloat16")
MATRIX_SIZE = {"cpu": 256}
LARGEST_MATRIX_SIZE = 2048
"""Rows and columns of the matrices, where `MATRIX_SIZE` names no smaller one for the platform."""

MEMORY_SHARE = 0.25
"""Share of a device's free memory that is written and read back."""

LARGEST_MEMORY = 4 << 30
"""Largest number of bytes that are written and read back."""

UNKNOWN_MEMORY = 16 << 20
"""Number of bytes written to a device that does not report its free memory."""

Compute = Callable[[Mesh, str, np.ndarray, np.ndarray], jax.Array]
"""Multiplies two matrices on every device of a mesh, in a dtype; the result has one product per device."""


def multiply(mesh: Mesh, dtype: str, left: np.ndarray, right: np.ndarray) -> jax.Array:
    """Computes the float32 product of two matrices rounded to the dtype, on every device: [device, row, column]."""

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("device"), out_specs=P("device"))
    def product(operands: jax.Array) -> jax.Array:
        narrow = operands[0].astype(dtype)
        return jnp.matmul(narrow[0], narrow[1], preferred_element_type=jnp.float32)[None]

    operands = np.stack([left, right])[None]
    sharding = NamedSharding(mesh, P("device"))
    shape = (mesh.size, *operands.shape[1:])
    return jax.jit(product)(jax.make_array_from_callback(shape, sharding, lambda index: operands))


def check_devices(devices: Sequence[jax.Device], compute: Compute = multiply) -> str:
    """Describes the failures of the devices; empty if there are none.

    The matrices hold small whole numbers, so the products are exact in both dtypes.

    Args:
        devices: Devices of this process.
        compute: Multiplies on every device.
    """
    mesh = Mesh(np.array(devices), ("device",))
    size = MATRIX_SIZE.get(devices[0].platform, LARGEST_MATRIX_SIZE)
    left, right = np.random.default_rng(0).integers(-2, 3, (2, size, size)).astype(np.float32)
    expected = left @ right
    try:
        wrong = [
            f"device {shard.device} multiplies wrongly in {dtype}"
            for dtype in DTYPES
            for shard in compute(mesh, dtype, left, right).addressable_shards
            if not np.array_equal(np.asarray(shard.data)[0], expected)
        ]
        wrong += _check_memory(mesh)
    except jax.errors.JaxRuntimeError as error:
        return f"its devices cannot run a program: {str(error).splitlines()[0]}"
    return ", ".join(wrong)


def _check_memory(mesh: Mesh) -> list[str]:
    """Describes the failures of the devices' memory; empty if the numbers read back are the numbers written."""
    count = min(_numbers_to_write(device) for device in mesh.devices.flat)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(), out_specs=P("device"))
    def write() -> jax.Array:
        return jax.lax.iota(jnp.uint32, count)[None]

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("device"), out_specs=P("device"))
    def add(numbers: jax.Array) -> jax.Array:
        return jnp.sum(numbers, axis=1, dtype=jnp.uint32)

    totals = jax.jit(add)(jax.jit(write)())
    return [
        f"device {shard.device} does not give back what was written to {4 * count} bytes of its memory"
        for shard in totals.addressable_shards
        if int(shard.data[0]) != count * (count - 1) // 2 % 2**32
    ]


def _numbers_to_write(device: jax.Device) -> int:
    """Returns how many numbers of 4 bytes are written to a device's memory."""
    statistics = device.memory_stats() or {}
    free = statistics.get("bytes_limit", 0) - statistics.get("bytes_in_use", 0)
    return (min(int(free * MEMORY_SHARE), LARGEST_MEMORY) if free > 0 else UNKNOWN_MEMORY) // 4
