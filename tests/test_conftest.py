"""The conditions that the other tests rely on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


def test_eight_cpu_devices():
    assert [device.platform for device in jax.devices()] == ["cpu"] * 8


def test_dtypes_do_not_promote_in_silence():
    with pytest.raises(ValueError, match="strict"):
        jnp.zeros(2, jnp.float32) + jnp.zeros(2, jnp.int32)


def test_ranks_do_not_promote_in_silence():
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.zeros((2, 3)) + jnp.zeros(3)


def test_programs_are_not_taken_from_a_cache_on_disk():
    assert not jax.config.jax_enable_compilation_cache


def test_warnings_are_errors():
    with pytest.raises(RuntimeWarning):
        np.float32(1) / np.float32(0)
