"""The meshes of a stage in several pipeline replicas, and arrays passed between them without a pipeline replica."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.axes import Axes
from sharding.runtime.meshes import submesh
from sharding.runtime.replica_meshes import ReplicaMeshes

AXES = Axes(data=("data",), tensor=("tensor",))


def meshes(pipeline_replicas: int = 2) -> ReplicaMeshes:
    devices = jax.devices()
    return ReplicaMeshes(
        tuple(
            submesh(devices[4 * pipeline_replica : 4 * pipeline_replica + 4], {"data": 2, "tensor": 2})
            for pipeline_replica in range(pipeline_replicas)
        )
    )


def pointers(array: jax.Array) -> dict[jax.Device, int]:
    return {shard.device: shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}


def test_the_mesh_of_all_copies_has_one_more_data_axis_in_front():
    both = meshes()
    assert both.all_pipeline_replicas.axis_names == ("pipeline_replica", "data", "tensor")
    assert [mesh.devices.tolist() for mesh in both.by_pipeline_replica] == both.all_pipeline_replicas.devices.tolist()
    assert both.axes_of_all(AXES) == Axes(data=("pipeline_replica", "data"), tensor=("tensor",))


def test_one_copy_has_no_axis_more_and_arrays_pass_as_they_are():
    alone = meshes(1)
    assert alone.all_pipeline_replicas is alone.by_pipeline_replica[0] and alone.axes_of_all(AXES) is AXES
    tree, specs = {"x": jnp.ones(2)}, {"x": P("data")}
    assert (
        alone.split(tree)[0] is tree and alone.join([tree], specs) is tree and alone.joined_shapes(tree, specs) is tree
    )


@pytest.mark.parametrize("spec", [P(), P(None, "tensor"), P(("tensor", "data"))])
def test_weights_of_all_copies_are_those_of_each_in_the_same_buffers(spec):
    both, values = meshes(), np.arange(32, dtype=np.float32).reshape(4, 8)
    whole = jax.device_put(values, NamedSharding(both.all_pipeline_replicas, spec))
    views = both.split({"w": whole})
    arrays = [view["w"] for view in views if view is not None]
    for mesh, array in zip(both.by_pipeline_replica, arrays, strict=True):
        assert array.sharding == NamedSharding(mesh, spec)
        np.testing.assert_array_equal(array, values)
    assert pointers(arrays[0]) | pointers(arrays[1]) == pointers(whole)


@pytest.mark.parametrize("spec", [P("pipeline_replica"), P(None, ("pipeline_replica", "tensor"))])
def test_an_array_divided_over_copies_is_not_split(spec):
    both = meshes()
    with pytest.raises(ValueError, match="divided over pipeline replicas"):
        both.split({"w": jax.device_put(np.zeros((4, 8)), NamedSharding(both.all_pipeline_replicas, spec))})


@pytest.mark.parametrize(
    ("spec", "rows", "joined"),
    [
        (P("data", "tensor"), 2, P(("pipeline_replica", "data"), "tensor")),
        (P(("data",), None), 2, P(("pipeline_replica", "data"), None)),
        (P((), "tensor"), 1, P(("pipeline_replica",), "tensor")),
        (P(None, ("data", "tensor")), 1, P(("pipeline_replica",), ("data", "tensor"))),
    ],
)
def test_gradients_of_each_copy_are_stacked_in_the_same_buffers(spec, rows, joined):
    both, random = meshes(), np.random.default_rng(0)
    values = [random.normal(size=(rows, 8)).astype(np.float32) for _ in both.by_pipeline_replica]
    arrays = [
        {"g": jax.device_put(value, NamedSharding(mesh, spec))}
        for value, mesh in zip(values, both.by_pipeline_replica, strict=True)
    ]
    whole = both.join(arrays, {"g": spec})["g"]
    assert whole.sharding == NamedSharding(both.all_pipeline_replicas, joined)
    np.testing.assert_array_equal(whole, np.concatenate(values))
    assert pointers(arrays[0]["g"]) | pointers(arrays[1]["g"]) == pointers(whole)
    abstract = both.joined_shapes({"g": jax.ShapeDtypeStruct((rows, 8), np.float32)}, {"g": spec})["g"]
    assert (abstract.shape, abstract.dtype, abstract.sharding) == (whole.shape, whole.dtype, whole.sharding)
