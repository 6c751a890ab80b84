"""Layers against their definitions, whole and split over tensor ranks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from mmjax.models.layers.feed_forward import MLP, GatedMLP
from mmjax.models.layers.linear import Convolution, Linear
from mmjax.models.layers.normalization import GroupNorm, LayerNorm, RMSNorm
from sharding.axes import Axes

pytestmark = pytest.mark.usefixtures("compiled_as_users_do")

TENSOR = Axes(tensor=("model",))


def mesh():
    return jax.make_mesh((2,), ("model",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_norms_equal_their_definitions():
    x, scale, bias = draw(2, 3, 8), draw(8, seed=1), draw(8, seed=2)
    rms, layer = RMSNorm(8), LayerNorm(8)
    for parameter, value in ((rms.scale, scale), (layer.scale, scale), (layer.bias, bias)):
        parameter.set_value(value)
    wide, scale, bias = np.asarray(x), np.asarray(scale), np.asarray(bias)
    close(rms(x), wide / np.sqrt(np.mean(np.square(wide), axis=-1, keepdims=True) + 1e-5) * scale)
    mean, variance = np.mean(wide, axis=-1, keepdims=True), np.var(wide, axis=-1, keepdims=True)
    close(layer(x), (wide - mean) / np.sqrt(variance + 1e-6) * scale + bias)


def test_norms_compute_in_float32_and_return_the_input_dtype():
    x = draw(2, 3, 8).astype(jnp.bfloat16)
    for norm in (RMSNorm(8), LayerNorm(8)):
        half = jax.tree.map(lambda leaf: leaf, norm)
        for name in ("scale", "bias"):
            if hasattr(half, name):
                getattr(half, name).set_value(getattr(half, name)[...].astype(jnp.bfloat16))
        assert half(x).dtype == jnp.bfloat16
        close(half(x).astype(jnp.float32), norm(x.astype(jnp.float32)).astype(jnp.bfloat16).astype(jnp.float32))


def test_group_norm_equals_its_definition():
    x, norm = draw(2, 4, 4, 8), GroupNorm(8, 2)
    groups = np.asarray(x).reshape(2, 16, 2, 4)
    mean, variance = groups.mean(axis=(1, 3), keepdims=True), groups.var(axis=(1, 3), keepdims=True)
    close(norm(x), ((groups - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape))


def test_group_norm_of_split_channels_equals_that_of_all_channels():
    x, scale, bias = draw(2, 4, 4, 8), draw(8, seed=1), draw(8, seed=2)

    def norm(x, scale, bias):
        module = GroupNorm(8, 4, split="tensor")
        module.scale.set_value(scale)
        module.bias.set_value(bias)
        return module(x)

    by_channel = P(None, None, None, "model")
    split = jax.shard_map(norm, mesh=mesh(), in_specs=(by_channel, P("model"), P("model")), out_specs=by_channel)
    close(jax.jit(split)(x, scale, bias), norm(x, scale, bias))


@pytest.mark.parametrize("build", [lambda: MLP(6, 8, 4), lambda: GatedMLP(6, 8)], ids=["MLP", "GatedMLP"])
def test_split_hidden_widths_give_the_same_outputs_and_gradients(build):
    module = build()
    graph, state = nnx.split(module)
    leaves = {path: draw(*leaf.shape, seed=n) for n, (path, leaf) in enumerate(nnx.to_flat_state(state))}
    specs = {
        path: P(*("model" if axis == "tensor" else None for axis in leaf.get_metadata("split")))
        for path, leaf in nnx.to_flat_state(state)
    }
    x = draw(2, 3, 6, seed=9)

    def run(leaves, x, axes):
        values = jax.tree.map(lambda leaf: leaf, nnx.to_pure_dict(state))
        for (first, second), value in leaves.items():
            values[first][second] = value
        return nnx.merge(graph, values)(x, axes)

    split = jax.shard_map(lambda leaves, x: run(leaves, x, TENSOR), mesh=mesh(), in_specs=(specs, P()), out_specs=P())
    expected, expected_vjp = jax.vjp(lambda leaves, x: run(leaves, x, Axes()), leaves, x)
    actual, vjp = jax.vjp(jax.jit(split), leaves, x)
    close(actual, expected)
    jax.tree.map(close, vjp(jnp.ones_like(actual)), expected_vjp(jnp.ones_like(actual)))


def test_the_bias_of_a_row_parallel_projection_is_added_once():
    kernel, bias, x = draw(4, 3), draw(3, seed=1), draw(2, 4, seed=2)

    def run(kernel, x, axes):
        module = Linear(4, 3, split="rows", bias=True)
        module.kernel.set_value(kernel)
        module.bias.set_value(bias)
        return module(x, axes)

    specs = (P("model", None), P(None, "model"))
    split = jax.shard_map(lambda kernel, x: run(kernel, x, TENSOR), mesh=mesh(), in_specs=specs, out_specs=P())
    close(jax.jit(split)(kernel, x), np.asarray(x) @ np.asarray(kernel) + np.asarray(bias))
    close(run(kernel, x, Axes()), np.asarray(x) @ np.asarray(kernel) + np.asarray(bias))


def test_convolutions_keep_or_halve_the_sides():
    x = draw(2, 6, 6, 3)
    same, halved = Convolution(3, 4), Convolution(3, 4, stride=2)
    identity = jnp.zeros((3, 3, 3, 4)).at[1, 1].set(jnp.eye(3, 4))
    same.kernel.set_value(identity)
    close(same(x, Axes())[..., :3], x)
    assert halved(x, Axes()).shape == (2, 3, 3, 4)
