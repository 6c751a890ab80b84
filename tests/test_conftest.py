"""The conditions that the other tests rely on."""

import os

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jaxtyping import Int, TypeCheckError

from mmjax.models.layers.positions import image_grid_sizes, sinusoidal_positions_1d
from sharding.plans.parallelism import Parallelism
from sharding.plans.unit_plan import UnitPlan


def test_eight_cpu_devices():
    assert [device.platform for device in jax.devices()] == ["cpu"] * 8


def test_dtypes_do_not_promote_in_silence():
    with pytest.raises(ValueError, match="strict"):
        jnp.zeros(2, jnp.float32) + jnp.zeros(2, jnp.int32)


def test_ranks_do_not_promote_in_silence():
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.zeros((2, 3)) + jnp.zeros(3)


def test_programs_are_taken_from_a_cache_on_disk_only_if_asked():
    asked = os.environ["JAX_ENABLE_COMPILATION_CACHE"] == "true"
    assert jax.config.jax_enable_compilation_cache == asked


def test_warnings_are_errors():
    with pytest.raises(RuntimeWarning):
        np.float32(1) / np.float32(0)


@jaxtyping.jaxtyped(typechecker=None)  # as the import hook writes it around every function
def twice(row: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    return np.concatenate([row, row])


def test_types_and_shapes_are_checked_if_asked(request):
    if not request.config.getoption("check_types"):
        assert not hasattr(image_grid_sizes, "__wrapped__")
        return
    positions, segments = jnp.zeros((1, 4, 2), jnp.int32), jnp.ones((1, 4), jnp.int32)
    assert image_grid_sizes(positions, segments).shape == (1, 4, 2)
    for call in (
        lambda: image_grid_sizes(positions, segments[:, :3]),  # dimensions of two arguments
        lambda: sinusoidal_positions_1d(segments, 5),  # a result of four columns, whose name is an argument's value
        lambda: twice(np.arange(3)),  # a dimension of the result and of an argument
        lambda: UnitPlan("all", ("vision",), (0,), parallelism=Parallelism(dp="2")),  # a field of a dataclass
    ):
        with pytest.raises(TypeCheckError):
            call()
