"""Both transfers of tokens to expert ranks against one device, for even and uneven routing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P

from configs.modules.experts import ExpertsConfig
from mmjax.models.layers.expert_exchange import EXPERT_SUMS, target_ranks
from mmjax.models.layers.experts import MixtureOfExperts
from sharding.axes import Axes
from tests.tiers import first_in_default

WIDTH, TOKENS, EXPERTS = 6, 16, 8  # tokens of all ranks together
AXES = ("outer", "inner")  # of the expert ranks


def routings(ranks, top_k):
    """Chosen experts of every token, by kind; all shapes alike, so that one program serves for all."""
    random = np.random.default_rng(ranks + top_k)
    local = EXPERTS // ranks
    anywhere = np.stack([random.permutation(EXPERTS)[:top_k] for _ in range(TOKENS)])
    on_the_last = np.stack([EXPERTS - 1 - random.permutation(local)[:top_k] for _ in range(TOKENS)])
    never_the_first = np.stack([local + random.permutation(EXPERTS - local)[:top_k] for _ in range(TOKENS)])
    spread = (np.arange(TOKENS)[:, None] + np.arange(top_k) * local) % EXPERTS
    return {
        "anywhere": anywhere,
        "all to one rank": on_the_last,
        "a rank without tokens": never_the_first,
        "on as many ranks as possible": spread,
    }


@functools.cache
def operands(dtype="float32"):
    random = np.random.default_rng(0)
    _, state = nnx.split(MixtureOfExperts(ExpertsConfig(count=EXPERTS, ffn=8), WIDTH))
    parameters = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape), dtype), nnx.to_pure_dict(state))
    x, seed = (jnp.asarray(random.normal(size=(TOKENS, WIDTH)), dtype) for _ in range(2))
    return parameters, x, seed


def weights_of(top_k):
    return jnp.asarray(np.random.default_rng(1).uniform(0.1, 1, (TOKENS, top_k)), jnp.float32)


@functools.cache
def program(form, ranks, top_k, tensor=1):
    """`(parameters, x, experts, weights, seed) -> output and gradients`; on one device without a form."""
    graph, _ = nnx.split(MixtureOfExperts(ExpertsConfig(count=EXPERTS, ffn=8), WIDTH))

    def body(parameters, x, experts, weights):
        layer = nnx.merge(graph, parameters)
        if not form:
            return layer._sum_local_experts(x, experts, weights)
        y = EXPERT_SUMS[form](layer._sum_local_experts, x, experts, weights, EXPERTS // ranks, AXES)
        return lax.psum(y, "tensor")

    if form:
        columns, rows = P(AXES, None, "tensor"), P(AXES, "tensor")
        kernels = {"router": P(), "gate": columns, "up": columns, "down": rows}
        devices = np.array(jax.devices()[: ranks * tensor]).reshape(ranks // 2, 2, tensor)
        mesh = jax.sharding.Mesh(devices, (*AXES, "tensor"))
        tokens = P(AXES)
        body = jax.shard_map(body, mesh=mesh, in_specs=(kernels, tokens, tokens, tokens), out_specs=tokens)

    def run(parameters, x, experts, weights, seed):
        y, pull = jax.vjp(lambda parameters, x, weights: body(parameters, x, experts, weights), parameters, x, weights)
        return y, pull(seed)

    return jax.jit(run)


def compare(actual, expected, error):
    for leaf, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        wanted = np.asarray(wanted, np.float32)
        assert np.linalg.norm(np.asarray(leaf, np.float32) - wanted) <= error * np.linalg.norm(wanted)


@pytest.mark.parametrize("form", first_in_default(EXPERT_SUMS))
@pytest.mark.parametrize(("ranks", "top_k", "tensor"), [(2, 1, 1), (2, 2, 2), (4, 1, 2), (4, 2, 1)])
def test_outputs_and_gradients_are_those_of_one_device(form, ranks, top_k, tensor):
    parameters, x, seed = operands()
    weights = weights_of(top_k)
    for experts in routings(ranks, top_k).values():
        given = (parameters, x, jnp.asarray(experts, jnp.int32), weights, seed)
        compare(program(form, ranks, top_k, tensor)(*given), program("", 1, top_k)(*given), 1e-6)


@pytest.mark.parametrize(("choice", "scattered"), [("gather", True), ("all_to_all", False), ("auto", False)])
def test_a_layer_uses_the_form_that_its_axes_name(choice, scattered):
    graph, state = nnx.split(MixtureOfExperts(ExpertsConfig(count=EXPERTS, ffn=8), WIDTH))
    axes = Axes(data=AXES, expert=AXES, expert_transfer=choice)
    kernels = {"router": P(), "gate": P(AXES), "up": P(AXES), "down": P(AXES)}
    layer = jax.shard_map(
        lambda parameters, x: nnx.merge(graph, parameters)(x, axes),
        mesh=jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), AXES),
        in_specs=(kernels, P(AXES)),
        out_specs=P(AXES),
    )
    program = str(jax.make_jaxpr(layer)(nnx.to_pure_dict(state), jnp.zeros((4, TOKENS, WIDTH))))
    assert ("reduce_scatter" in program) == scattered


def test_in_bfloat16_sums_differ_by_rounding_alone():
    parameters, x, seed = operands("bfloat16")
    weights, experts = weights_of(2), jnp.asarray(routings(4, 2)["anywhere"], jnp.int32)
    given = (parameters, x, experts, weights, seed)
    actual, expected = program("all_to_all", 4, 2)(*given), program("", 1, 2)(*given)
    assert actual[0].dtype == jnp.bfloat16
    compare(actual, expected, 2**-7)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_a_token_goes_once_to_each_rank_that_has_any_of_its_experts(ranks, top_k):
    random = np.random.default_rng(2)
    chosen = np.stack([random.permutation(EXPERTS)[:top_k] for _ in range(50)]) // (EXPERTS // ranks)
    target_rows = np.asarray(target_ranks(jnp.asarray(chosen, jnp.int32), ranks))
    assert target_rows.shape == (50, min(top_k, ranks))
    for row, token_ranks in zip(target_rows.tolist(), chosen.tolist(), strict=True):
        targets = sorted(set(token_ranks))
        assert row == targets + [ranks] * (len(row) - len(targets))
