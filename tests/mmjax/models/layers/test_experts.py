"""Mixtures of experts against a plain loop over experts, on one device and with experts split over ranks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from configs.modules.experts import ExpertsConfig, RouterConfig
from mmjax.models.layers.experts import BalancingWeights, MixtureOfExperts, load_balancing_loss
from mmjax.models.layers.router import route_tokens
from sharding.axes import Axes
from sharding.trees import set_leaf
from tests.tiers import first_in_default

WIDTH, ROWS, TOKENS = 8, 4, 6
MIXTRAL = ExpertsConfig(count=4, top_k=2, ffn=12, balance_weight=0.5)
QWEN = ExpertsConfig(count=8, top_k=3, ffn=12, router=RouterConfig(normalise=False), shared_ffn=16)
DEEPSEEK = ExpertsConfig(
    count=8,
    top_k=3,
    ffn=12,
    router=RouterConfig(scores="sigmoid", selection_bias=True, groups=4, top_groups=2, weight_factor=2.5),
    shared_ffn=16,
    shared_gate=False,
)
GPT_OSS = ExpertsConfig(count=8, top_k=3, ffn=12, router=RouterConfig(bias=True), biases=True, limit=0.5, up_offset=1.0)
LLAMA4 = ExpertsConfig(
    count=4,
    top_k=2,
    ffn=12,
    router=RouterConfig(scores="sigmoid", normalise=False, weighted="inputs"),
    shared_ffn=16,
    shared_gate=False,
)
AXES = Axes(data=("data", "expert"), tensor=("tensor",), expert=("expert",))
MODELS = {"Mixtral": MIXTRAL, "Qwen2-MoE": QWEN, "DeepSeek-V3": DEEPSEEK, "gpt-oss": GPT_OSS, "Llama 4": LLAMA4}
CASES = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)


def drawn(config):
    """Graph and parameters of the layer, inputs, balancing weights, and an output gradient."""
    random = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    graph, state = nnx.split(MixtureOfExperts(config, WIDTH))
    parameters = jax.tree.map(lambda leaf: draw(*leaf.shape), nnx.to_pure_dict(state))
    segments = jnp.asarray([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5, 6], [0] * TOKENS], jnp.int32)
    counted = BalancingWeights(segments, jnp.where(segments > 0, jnp.float32(0.05), jnp.float32(0)))
    return graph, parameters, draw(ROWS, TOKENS, WIDTH), counted, draw(ROWS, TOKENS, WIDTH)


def dense(config, parameters, x, counted):
    """Definition: every expert on every token, summed over the chosen ones; balancing by loops over samples."""
    routing = route_tokens(
        x @ parameters["router"] + vector(parameters, "router_bias"), config, parameters.get("selection_bias")
    )
    mask = jnp.sum(jax.nn.one_hot(routing.experts, config.count), axis=-2)
    weights = jnp.sum(jax.nn.one_hot(routing.experts, config.count) * routing.weights[..., None], axis=-2)
    probabilities, weights_inputs = routing.probabilities, config.router.weighted == "inputs"
    y = jnp.zeros_like(x)
    for expert in range(config.count):
        weight = weights[..., expert : expert + 1]
        gate, up, down = (
            (parameters[name][expert], vector(parameters, f"{name}_bias", expert)) for name in ("gate", "up", "down")
        )
        inputs = x * weight if weights_inputs else x
        gated, upped = inputs @ gate[0] + gate[1], inputs @ up[0] + up[1]
        if config.limit:
            gated, upped = jnp.minimum(gated, config.limit), jnp.clip(upped, -config.limit, config.limit)
        expert_output = (jax.nn.silu(gated) * (upped + config.up_offset)) @ down[0] + down[1]
        y += mask[..., expert : expert + 1] * expert_output if weights_inputs else weight * expert_output
    if config.shared_ffn:
        gate, up, down = (parameters["shared"][name]["kernel"] for name in ("gate", "up", "down"))
        open_by = jax.nn.sigmoid(x @ parameters["shared_gate"]["kernel"]) if config.shared_gate else 1.0
        y += open_by * ((jax.nn.silu(x @ gate) * (x @ up)) @ down)
    loss = jnp.zeros(())
    for row, segments in enumerate(np.asarray(counted.segments)):
        for segment in set(segments.tolist()) - {0}:
            positions = np.flatnonzero(segments == segment)
            share = jnp.sum(counted.loss_shares[row, positions])
            fractions, means = jnp.mean(mask[row, positions], axis=0), jnp.mean(probabilities[row, positions], axis=0)
            loss += share * config.count * jnp.sum(fractions * means)
    return y, config.balance_weight * loss


def vector(parameters, name, expert=...):
    """A bias, or that of an expert, as [1, 1, n]; 0 where there is none."""
    return parameters[name][expert][None, None] if name in parameters else 0.0


def split_specs(config):
    """PartitionSpec of each parameter."""
    _, state = nnx.split(MixtureOfExperts(config, WIDTH))
    specs = {}
    for path, leaf in nnx.to_flat_state(state):
        specs = set_leaf(specs, "/".join(path), P(*leaf.get_metadata("split")))
    return specs


def layer(config, data=0, expert=0, tensor=0):
    """`(parameters, x, counted) -> (y, loss)`, on a mesh if its sizes are given."""
    graph, _ = nnx.split(MixtureOfExperts(config, WIDTH))

    def run(parameters, x, counted, axes):
        return nnx.merge(graph, parameters).with_balancing_loss(x, counted, axes)

    if not data:
        return functools.partial(run, axes=Axes())
    count = data * expert * tensor
    kinds = (jax.sharding.AxisType.Auto,) * 3
    mesh = jax.make_mesh((data, expert, tensor), ("data", "expert", "tensor"), kinds, devices=jax.devices()[:count])

    def body(parameters, x, counted):
        y, loss = run(parameters, x, counted, AXES)
        return y, jax.lax.psum(loss, AXES.data)

    rows = P(AXES.data)
    specs = (split_specs(config), rows, BalancingWeights(rows, rows))
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=(rows, P()))


def with_gradients(run, parameters, x, counted, seed):
    def total(parameters, x):
        y, loss = run(parameters, x, counted)
        return jnp.sum(y * seed) + loss, (y, loss)

    return jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(parameters, x)


@functools.cache
def expected(config):
    _, *operands = drawn(config)
    return with_gradients(functools.partial(dense, config), *operands)


def close(actual, wanted):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * (1 + np.max(np.abs(b)))), actual, wanted
    )


@CASES
@pytest.mark.parametrize("sizes", first_in_default(map(pytest.param, [(), (1, 4, 1), (2, 2, 2)])), ids=str)
def test_experts_equal_a_loop_over_experts_with_gradients(config, sizes):
    _, *operands = drawn(config)
    close(with_gradients(layer(config, *sizes), *operands), expected(config))


@pytest.mark.parametrize("sizes", [(), (1, 4, 1)], ids=str)
def test_no_token_is_dropped_when_all_choose_the_same_experts(sizes):
    _, parameters, x, counted, seed = drawn(MIXTRAL)
    x = jnp.abs(x)
    parameters["router"] = jnp.zeros_like(parameters["router"]).at[:, 1:3].set(1.0).at[:, 2].add(0.1)
    chosen = route_tokens(x @ parameters["router"], MIXTRAL).experts
    assert set(np.asarray(chosen).reshape(-1).tolist()) == {1, 2}
    operands = (parameters, x, counted, seed)
    close(
        with_gradients(layer(MIXTRAL, *sizes), *operands), with_gradients(functools.partial(dense, MIXTRAL), *operands)
    )


def test_the_balancing_loss_ignores_padding_and_is_least_for_even_routing():
    even = jnp.full((1, 4, 4), 0.25)
    chosen = jnp.asarray([[[0], [1], [2], [3]]], jnp.int32)
    ones = BalancingWeights(jnp.ones((1, 4), jnp.int32), jnp.full((1, 4), 0.25))
    np.testing.assert_allclose(load_balancing_loss(even, chosen, ones, Axes()), 1.0)
    crowded = jax.nn.softmax(jnp.zeros((1, 4, 4)).at[..., 0].set(5.0))
    assert load_balancing_loss(crowded, jnp.zeros_like(chosen), ones, Axes()) > 3
    padded = BalancingWeights(jnp.asarray([[1, 1, 0, 0]], jnp.int32), jnp.asarray([[0.5, 0.5, 0, 0]], jnp.float32))
    alone = BalancingWeights(padded.segments[:, :2], padded.loss_shares[:, :2])
    np.testing.assert_allclose(
        load_balancing_loss(crowded, chosen, padded, Axes()),
        load_balancing_loss(crowded[:, :2], chosen[:, :2], alone, Axes()),
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_k": 9}, "top_k = 9 is more than count = 8"),
        ({"count": 0}, "count is 0"),
        ({"balance_weight": -1.0}, "balance_weight is -1.0"),
        ({"router": RouterConfig(groups=3)}, "3 groups, which must divide the 8 experts"),
        ({"router": RouterConfig(groups=8)}, "groups of at least 2"),
        ({"top_k": 3, "router": RouterConfig(groups=4)}, "top_k = 3 is more than the 2 experts of the 1 groups"),
    ],
)
def test_invalid_experts_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        ExpertsConfig(**fields)
