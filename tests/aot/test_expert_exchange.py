"""A mixture of experts compiled for H100s: its tokens travel by the transfer that the cost model charges."""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.h100_schedule.compilation import TENSOR, compile_for_h100, tensor_mesh
from configs.modules.experts import ExpertsConfig
from mmjax.models.layers.experts import MixtureOfExperts
from mmjax.models.layers.tensor_parallel import MATMUL_CHECKPOINT_NAME
from mmjax.training.dry_run.overlap import Collective, find_collectives
from mmjax.training.dry_run.targets import missing_plugin
from pallas_kernels.varying import make_varying
from sharding.axes import Axes
from sharding.expert_transfer import Routing, cheaper_transfer
from sharding.specs.layers.layer import expert_combine, expert_dispatch, make_loads

pytestmark = [pytest.mark.aot, pytest.mark.skipif(bool(missing_plugin()), reason=missing_plugin())]

RANKS, TOKENS, WIDTH, BF16 = 4, 512, 256, 2  # tokens of a rank
GATHERED, EXCHANGED = ExpertsConfig(count=16, top_k=6, ffn=128), ExpertsConfig(count=16, top_k=1, ffn=128)
NUMBERS = RANKS * RANKS * 4  # of rows that go from each rank to each other


@functools.cache
def collectives(config: ExpertsConfig, policy: str) -> tuple[Collective, ...]:
    """Those of the layer's forward and gradients with a recomputation policy."""
    mesh, axes = tensor_mesh(RANKS), Axes(data=(TENSOR,), expert=(TENSOR,))
    graph, state = nnx.split(MixtureOfExperts(config, WIDTH))

    def forward(parameters, x):
        return nnx.merge(graph, parameters)(x, axes)

    saved = jax.checkpoint_policies.save_only_these_names(MATMUL_CHECKPOINT_NAME)
    layer = jax.checkpoint(forward, policy=saved) if policy == "selective" else forward

    def gradients(parameters, x):
        y, pull = jax.vjp(layer, make_varying(parameters, (TENSOR,)), x)
        parameter_gradients, x_gradient = pull(y)
        return jax.tree.map(lambda leaf: leaf[None], parameter_gradients), x_gradient

    specs = jax.tree.map(lambda leaf: P(TENSOR) if leaf.ndim == 3 else P(), nnx.to_pure_dict(state))
    mapped = jax.shard_map(gradients, mesh=mesh, in_specs=(specs, P(TENSOR)), out_specs=P(TENSOR))

    def abstract(shape, spec):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    parameters = jax.tree.map(lambda leaf, spec: abstract(leaf.shape, spec), nnx.to_pure_dict(state), specs)
    x = abstract((RANKS, TOKENS, WIDTH), P(TENSOR))
    return tuple(find_collectives(compile_for_h100(mapped, (parameters, x), {}).program))


def sizes(config: ExpertsConfig, policy: str, kind: str) -> list[int]:
    return sorted(
        collective.size
        for collective in collectives(config, policy)
        if collective.kind == kind and collective.size > NUMBERS
    )


def moved(kernel) -> float:
    """Bytes of a rank's tokens, as the cost model counts them."""
    return BF16 * float(kernel.activations.evaluate(make_loads(tokens=TOKENS)))


def test_a_gather_and_its_gradients_have_the_bytes_of_the_cost_model():
    routing = Routing(GATHERED.count, GATHERED.top_k)
    assert cheaper_transfer(routing, RANKS, nodes=1) == "gather"
    there, back = moved(expert_dispatch(WIDTH, routing.top_k)), moved(expert_combine(WIDTH))
    experts = 4 * TOKENS * routing.top_k  # their numbers, of which there are no gradients
    assert sum(sizes(GATHERED, "none", "all-gather")) == RANKS * (there + back)
    assert sum(sizes(GATHERED, "none", "reduce-scatter")) == RANKS * (there - experts + back)


def test_an_all_to_all_has_room_for_all_tokens_and_sends_them_again_where_they_are_not_saved():
    routing = Routing(EXCHANGED.count, EXCHANGED.top_k)
    assert cheaper_transfer(routing, RANKS, nodes=1) == "all_to_all"
    # An operand of what a rank may send and a result of what it may receive, with the offsets of both.
    room = RANKS + routing.most_ranks(RANKS)
    there, back = room * moved(expert_dispatch(WIDTH, routing.top_k)), room * moved(expert_combine(WIDTH))
    for policy, expected, exchanges in (("none", 2 * (there + back), 6), ("selective", 3 * there + 2 * back, 8)):
        assert sizes(EXCHANGED, policy, "all-gather") == sizes(EXCHANGED, policy, "reduce-scatter") == []
        exchange_sizes = sizes(EXCHANGED, policy, "ragged-all-to-all")
        assert len(exchange_sizes) == exchanges
        assert 0 <= sum(exchange_sizes) - expected <= exchanges * 2 * NUMBERS
