"""The check of the devices: all eight are right, and one that computes wrongly is named."""

import jax
import numpy as np
import pytest

from mmjax.training.start_checks import device_check
from mmjax.training.start_checks.device_check import check_devices, multiply


def test_right_devices_pass():
    assert check_devices(jax.devices()) == check_devices(jax.devices()[3:4]) == ""


@pytest.mark.parametrize("dtype", device_check.DTYPES)
def test_a_device_that_multiplies_wrongly_is_named(dtype):
    def compute(mesh, computed, left, right):
        product = multiply(mesh, computed, left, right)
        if computed != dtype:
            return product
        shards = [shard.data for shard in product.addressable_shards]
        shards[5] = shards[5].at[0, 7, 9].add(1)
        return jax.make_array_from_single_device_arrays(product.shape, product.sharding, shards)

    assert check_devices(jax.devices(), compute) == f"device {jax.devices()[5]} multiplies wrongly in {dtype}"


def test_memory_that_does_not_come_back_is_named(monkeypatch):
    monkeypatch.setattr(device_check, "UNKNOWN_MEMORY", 4096)
    monkeypatch.setattr(jax.lax, "iota", lambda dtype, count: jax.numpy.zeros(count, dtype))
    assert check_devices(jax.devices()[2:3]) == (
        f"device {jax.devices()[2]} does not give back what was written to 4096 bytes of its memory"
    )


def test_devices_that_run_no_program_are_a_failure():
    def compute(mesh, dtype, left, right):
        def fail(_):
            raise RuntimeError("the link is down")

        shape = jax.ShapeDtypeStruct((8, 256, 256), np.float32)
        return jax.jit(lambda: jax.pure_callback(fail, shape, 0))()

    assert check_devices(jax.devices(), compute).startswith("its devices cannot run a program: ")
