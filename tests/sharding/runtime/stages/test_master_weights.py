"""Master weights: their shardings, the compute weights made of them and the gradients reduced to them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.plans.resolved.stage_axes import STAGE_AXES
from sharding.runtime.stages.master_weights import LayerStackShapes, StageMasterWeights
from sharding.runtime.stages.weight_specs import compute_spec, fully_sharded_dimension, master_spec
from tests.sharding.runtime.submeshes import stage_mesh

LAYERS = ("003", "004")


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


STACKS = {
    "m/blocks": LayerStackShapes(
        layers=LAYERS,
        stacked=True,
        shapes={"up": shape(4, 8), "norm": shape(3)},
        splits={"up": (None, "tensor"), "norm": (None,)},
    ),
    "m/head": LayerStackShapes(
        layers=("000",),
        stacked=False,
        shapes={"norm": shape(6), "rows": shape(5, 8)},
        splits={"norm": (None,), "rows": ("tensor", None)},
        tied_shapes={"table": shape(3, 6)},
        tied_splits={"table": ("tensor", None)},
    ),
}


@pytest.mark.parametrize(
    ("shape", "split", "expected"),
    [
        ((4, 8), (None, None), P(None, STAGE_AXES.data)),
        ((8, 4), (None, None), P(STAGE_AXES.data, None)),
        ((4, 8), (None, "tensor"), P(STAGE_AXES.data, ("tensor",))),
        ((3, 5), (None, None), P(None, None)),
        ((4, 8), ("tensor", None), P(("tensor",), STAGE_AXES.data)),
        ((3, 8), ("tensor", None), P(None, ("tensor", *STAGE_AXES.data))),
        ((3, 6), ("tensor", None), P(None, ("tensor",))),
        ((3, 7), ("tensor", None), P(None, None)),
        ((7,), (None,), P(None)),
        ((6,), (None,), P(STAGE_AXES.data)),
    ],
)
def test_data_axes_go_to_the_largest_dimension_they_divide(shape, split, expected):
    assert master_spec(shape, split, stage_mesh(jax.devices()[:4], 2, 2), STAGE_AXES) == expected


SHARDED = dataclasses.replace(STAGE_AXES, fsdp=("fsdp", "expert"))


@pytest.mark.parametrize(
    ("shape", "split", "expected_compute", "expected_master"),
    [
        ((4, 16), (None, None), P(None, ("fsdp", "expert")), P(None, ("fsdp", "expert", "data"))),
        ((4, 6), (None, None), P(("fsdp", "expert"), None), P(("fsdp", "expert"), ("data",))),  # 4 is no multiple of 8
        ((4, 7), (None, None), P(("fsdp", "expert"), None), P(("fsdp", "expert"), None)),
        ((7, 10), (None, None), P(None, None), P(None, None)),
        ((2, 8, 6), ("expert", None, None), P(("expert",), ("fsdp",), None), P(("expert",), ("fsdp", "data"), None)),
        ((2, 7, 5), ("expert", None, None), P(("expert",), None, None), P(("expert",), None, None)),
    ],
)
def test_fully_sharded_weights_are_divided_within_groups_and_their_masters_over_all(
    shape, split, expected_compute, expected_master
):
    mesh = stage_mesh(jax.devices(), 8, 1, ep=2, fsdp=4)
    assert compute_spec(shape, split, mesh, SHARDED) == expected_compute
    assert master_spec(shape, split, mesh, SHARDED) == expected_master
    dimension = fully_sharded_dimension(expected_compute, SHARDED)
    divided = ((dim, (e,) if e == "fsdp" else e) for dim, e in enumerate(expected_compute))  # P(("fsdp",)) is P("fsdp")
    assert dimension == next((entry for entry in divided if entry[1] and "fsdp" in entry[1]), None)


def test_one_replica_splits_nothing_over_data():
    assert master_spec((4, 8), (None, "tensor"), stage_mesh(jax.devices()[:2], 1, 2), STAGE_AXES) == P(
        None, ("tensor",)
    )


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((4, 6, 8), P(("expert",), ("data", "fsdp"), ("tensor",))), ((4, 3, 8), P(("expert",), None, ("tensor",)))],
)
def test_experts_are_sharded_over_the_data_axes_that_do_not_split_them(shape, expected):
    mesh = stage_mesh(jax.devices(), 4, 2, ep=2)
    assert master_spec(shape, ("expert", None, "tensor"), mesh, STAGE_AXES) == expected
    assert master_spec(shape, ("expert", None, "tensor"), stage_mesh(jax.devices()[:4], 2, 2, ep=2), STAGE_AXES) == P(
        ("expert",), None, ("tensor",)
    )


def masters(dtype=jnp.bfloat16):
    return StageMasterWeights(
        STACKS, stage_mesh(jax.devices()[:4], 2, 2), {"m": STAGE_AXES}, jnp.dtype(dtype), ("m", 1)
    )


def values(master):
    random = np.random.default_rng(0)
    trees = {
        key: {layer: {name: random.normal(size=s.shape).astype(np.float32) for name, s in piece.shapes.items()}}
        for key, piece in STACKS.items()
        for layer in piece.layers[:1]
    }
    trees["m/blocks"]["004"] = {name: value + 1 for name, value in trees["m/blocks"]["003"].items()}
    return jax.device_put(trees, master.shardings), trees


def test_every_device_has_a_shard_of_the_master_weights():
    placed, _ = values(masters())
    shards = placed["m/blocks"]["003"]["up"].addressable_shards
    assert [shard.data.shape for shard in shards] == [(2, 4)] * 4
    assert len({str(shard.index) for shard in shards}) == 4


def test_gather_casts_and_stacks_layers_in_order():
    master = masters()
    placed, host = values(master)
    weights = master.gather(placed)
    expected = np.stack([host["m/blocks"][layer]["up"] for layer in LAYERS]).astype(jnp.bfloat16)
    assert weights["m/blocks"]["up"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(weights["m/blocks"]["up"], expected)
    assert (
        weights["m/blocks"]["up"].sharding.spec == master.compute_specs["m/blocks"]["up"] == P(None, None, ("tensor",))
    )
    assert weights["m/head"]["norm"].shape == (6,)  # a single layer is not stacked
    padded = np.pad(host["m/head"]["000"]["rows"].astype(jnp.bfloat16), ((0, 1), (0, 0)))
    np.testing.assert_array_equal(weights["m/head"]["rows"], padded)  # tensor ranks do not divide 5 rows
    assert weights["m/head"]["rows"].sharding.spec == master.compute_specs["m/head"]["rows"] == P(("tensor",), None)
    assert master.compute_shapes["m/head"]["rows"].shape == padded.shape
    assert set(weights["m/head"]) == {"norm", "rows"}  # the tied parameter comes from its owner
    assert master.compute_shapes["m/head"]["table"] == jax.ShapeDtypeStruct((4, 6), jnp.bfloat16)
    assert master.compute_specs["m/head"]["table"] == P(("tensor",), None)


def test_reduce_sums_replicas_and_unstacks_layers_to_the_shardings_of_the_master_weights():
    master = masters()
    random = np.random.default_rng(1)
    host = {
        "m/blocks": {"up": random.normal(size=(2, 2, 4, 8)), "norm": random.normal(size=(2, 2, 3))},
        "m/head": {
            "norm": random.normal(size=(2, 6)),
            "rows": random.normal(size=(2, 6, 8)),
            "table": random.normal(size=(2, 4, 6)),
        },
    }
    host = jax.tree.map(lambda leaf: leaf.astype(np.float32), host)
    specs = jax.tree.map(
        lambda spec: P(STAGE_AXES.data, *spec), master.compute_specs, is_leaf=lambda s: isinstance(s, P)
    )
    placed = jax.tree.map(
        lambda leaf, spec: jax.device_put(leaf, NamedSharding(master.mesh, spec)),
        host,
        specs,
    )
    reduced = master.make_reduce(frozenset(STACKS))(placed)
    for at, layer in enumerate(LAYERS):
        for name in ("up", "norm"):
            gradient = reduced["m/blocks"][layer][name]
            np.testing.assert_allclose(gradient, host["m/blocks"][name].sum(axis=0)[at], rtol=1e-6, atol=1e-6)
            assert gradient.sharding.is_equivalent_to(master.shardings["m/blocks"][layer][name], gradient.ndim)
    head = reduced["m/head"]["000"]
    for name, rows, spec in (("rows", 5, P(None, ("tensor", *STAGE_AXES.data))), ("table", 3, P(None, ("tensor",)))):
        np.testing.assert_allclose(head[name], host["m/head"][name].sum(axis=0)[:rows], rtol=1e-6, atol=1e-6)
        assert head[name].sharding.spec == spec
    only = master.make_reduce(frozenset({"m/blocks"}))({"m/blocks": placed["m/blocks"]})
    assert set(only) == {"m/blocks"}
