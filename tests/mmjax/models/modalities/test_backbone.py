"""The backbone: loss and embedding over a split vocabulary, inserted tokens, independence of samples in a row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from configs.architectures import BackboneConfig, ModelConfig
from configs.attention.rope import rotary_frequencies
from mmjax.models.layers.positions import rotary_cos_sin
from mmjax.models.layers.transformer import SharedInputs
from mmjax.models.modalities.backbone import (
    BackboneBlock,
    TokenEmbedding,
    hidden_states_at,
    insert_encoder_tokens,
)
from mmjax.models.model import model_modules
from mmjax.models.structure.parameters import init_module_parameters, layer_name, piece_definition
from pallas_kernels.packed_attention import make_segment_mask
from sharding.axes import Axes
from tests.tiny_model import tiny_model

TENSOR = Axes(tensor=("model",))


def mesh(devices=2):
    return jax.make_mesh((devices,), ("model",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:devices])


def test_a_split_embedding_table_gives_the_same_embeddings():
    config = ModelConfig((), BackboneConfig(vocabulary=8, width=4, heads=2, kv_heads=2), ())
    table = jnp.asarray(np.random.default_rng(0).normal(size=(8, 4)), jnp.float32)
    tokens = jnp.array([[0, 3, 4, 7], [7, 7, 0, 1]])

    def look_up(table, axes):
        module = TokenEmbedding(config)
        module.embedding.set_value(table)
        return module({}, {"tokens": tokens}, axes)

    split = jax.shard_map(lambda t: look_up(t, TENSOR), mesh=mesh(), in_specs=P("model"), out_specs=P())
    np.testing.assert_array_equal(look_up(table, Axes()), table[tokens])
    np.testing.assert_array_equal(jax.jit(split)(table), table[tokens])


def test_an_ungated_block_equals_its_definition():
    block = BackboneBlock(
        BackboneConfig(width=4, heads=2, kv_heads=2, ffn=6, activation="gelu_tanh", gated=False, biases=("mlp",))
    )
    random = np.random.default_rng(0)
    up, down, up_bias, down_bias = (random.normal(size=shape).astype(np.float32) for shape in ((4, 6), (6, 4), 6, 4))
    for layer, kernel, bias in ((block.mlp.up, up, up_bias), (block.mlp.down, down, down_bias)):
        layer.kernel.set_value(jnp.asarray(kernel))
        layer.bias.set_value(jnp.asarray(bias))
    x = jnp.asarray(random.normal(size=(1, 3, 4)), jnp.float32)

    @jax.jit
    def both(x):
        hidden = block.mlp_norm(x)[0] @ up + up_bias[None]
        expected = x[0] + jax.nn.gelu(hidden) @ down + down_bias[None]  # attention starts at 0, so it adds nothing
        rotary = rotary_cos_sin(jnp.arange(3)[None], rotary_frequencies(2, 10.0))
        return block(x, SharedInputs(make_segment_mask(np.ones((1, 3), np.int32)), rotary), Axes()), expected

    actual, expected = both(x)
    np.testing.assert_allclose(actual[0], expected, rtol=1e-4, atol=1e-5)


def test_encoder_tokens_are_inserted_at_their_index():
    x = jnp.arange(8.0).reshape(2, 4, 1)
    tokens = 10 * (1 + jnp.arange(4.0)).reshape(2, 2, 1)
    index = jnp.array([[-1, 1, -1, 0], [-1, -1, -1, 1]])
    np.testing.assert_array_equal(insert_encoder_tokens(x, tokens, index)[..., 0], [[0, 20, 2, 10], [4, 5, 6, 40]])


def test_hidden_states_are_taken_from_their_own_row():
    hidden = jnp.arange(8.0).reshape(2, 4, 1)
    at = jnp.array([[[0, 3]], [[2, 2]]])
    np.testing.assert_array_equal(hidden_states_at(hidden, at, 4, Axes())[..., 0], [[[0, 3]], [[6, 6]]])


# ---------------------------------------------------------------- packing


CONFIG = tiny_model()


@functools.cache
def parameters():
    return init_module_parameters(0, model_modules(CONFIG)[1])


@jax.jit
def row_logits(weights, row):
    """Logits computed layer by layer."""
    embed, blocks, head = (piece_definition(piece) for piece in model_modules(CONFIG)[1].pieces)
    images = jnp.zeros((1, 2, CONFIG.backbone.width))
    x = embed.apply(weights["embed"]["000"], {"vision": images}, row, Axes())
    shared = BackboneBlock.shared_inputs(CONFIG.backbone, row)
    for layer in range(CONFIG.backbone.depth):
        x = blocks.apply(weights["blocks"][layer_name(layer)], x, shared, Axes())
    model = head.bind(weights["head"]["000"])
    return model.logits(model.norm(x))[0]


def logits(tokens, segments, branches, positions):
    """Logits of one row, padded to ten tokens."""
    fields = {"tokens": tokens, "segments": segments, "branches": branches, "positions": positions}
    row = {name: jnp.asarray([values + [0] * (10 - len(values))], jnp.int32) for name, values in fields.items()}
    row["vision_index"] = jnp.full_like(row["tokens"], -1)
    return np.asarray(row_logits(parameters(), row))[: len(tokens)]


def test_logits_do_not_depend_on_other_samples_and_branches_of_the_row():
    """A question has the same logits alone, between other branches of its sample, and between other samples."""
    alone = logits([5, 6, 7, 8], [1] * 4, [0, 0, 1, 1], [0, 1, 2, 3])
    among = logits([5, 6, 9, 10, 11, 7, 8, 12], [1] * 8, [0, 0, 1, 1, 1, 2, 2, 3], [0, 1, 2, 3, 4, 2, 3, 2])
    np.testing.assert_allclose(among[[0, 1, 5, 6]], alone, rtol=1e-4, atol=1e-5)
    packed = logits(
        [1, 2, 3, 5, 6, 7, 8, 4, 4, 0], [1] * 3 + [2] * 4 + [3] * 2 + [0],
        [0, 0, 0, 0, 0, 1, 1, 0, 0, 0], [0, 1, 2, 0, 1, 2, 3, 0, 1, 0],
    )  # fmt: skip
    np.testing.assert_allclose(packed[3:7], alone, rtol=1e-4, atol=1e-5)


def test_logits_depend_on_the_trunk_and_the_own_branch():
    alone = logits([5, 6, 7, 8], [1] * 4, [0, 0, 1, 1], [0, 1, 2, 3])
    for changed in ([4, 6, 7, 8], [5, 6, 4, 8]):
        other = logits(changed, [1] * 4, [0, 0, 1, 1], [0, 1, 2, 3])
        assert np.max(np.abs(other[3] - alone[3])) > 1e-3
