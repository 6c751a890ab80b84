"""Masks and rotations of the kinds of attention, against their definitions position by position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.attention.attention_kinds import AttentionTemperature
from configs.modules.backbone import BackboneConfig
from mmjax.models.modalities.attention_kinds import backbone_rotary, causal_mask
from pallas_kernels.packed_attention import packed_attention
from pallas_kernels.packed_attention.segment_mask import dense_mask, with_block_pairs

CHUNK = 3
LLAMA4 = BackboneConfig(
    attention_pattern=("chunked", "unrotated"),
    attention_chunk=CHUNK,
    attention_temperature=AttentionTemperature(0.5, 4),
    qk_norm="rotated",
)
# Two samples and padding; the first has two branches, which go on where its trunk of five positions ends.
SEGMENTS = np.array([1] * 11 + [2] * 4 + [0])
BRANCHES = np.array([0] * 5 + [1] * 2 + [2] * 4 + [0] * 5)
POSITIONS = np.array([0, 1, 2, 3, 4, 5, 6, 5, 6, 7, 8, 0, 1, 2, 3, 0])
BATCH = {
    name: jnp.asarray(ids, jnp.int32)[None]
    for name, ids in (("segments", SEGMENTS), ("branches", BRANCHES), ("positions", POSITIONS))
}


def test_a_position_of_a_chunked_layer_attends_to_earlier_ones_of_its_chunk():
    expected = np.zeros((16, 16), bool)
    for query in range(15):
        for key in range(query + 1):
            visible = SEGMENTS[query] == SEGMENTS[key] and BRANCHES[key] in (0, BRANCHES[query])
            expected[query, key] = visible and POSITIONS[query] // CHUNK == POSITIONS[key] // CHUNK
    np.testing.assert_array_equal(dense_mask(causal_mask(LLAMA4, BATCH, "chunked"))[0], expected)


def test_blocks_of_a_chunked_layer_are_those_that_its_mask_needs():
    random = np.random.default_rng(0)
    query, key, value = (jnp.asarray(random.normal(size=(1, 16, 2, 4)), jnp.float32) for _ in range(3))
    mask = causal_mask(LLAMA4, BATCH, "chunked")
    blocked = packed_attention(query, key, value, with_block_pairs(mask, 4), implementation="blocked")
    dense = packed_attention(query, key, value, mask, implementation="dense")
    np.testing.assert_allclose(blocked, dense, rtol=1e-5, atol=1e-6)


def test_queries_of_unrotated_layers_are_not_rotated_and_grow_with_their_positions():
    rotation = backbone_rotary(LLAMA4, BATCH["positions"], "unrotated")
    assert rotation is not None and rotation.is_rotated is not None and rotation.query_scale is not None
    np.testing.assert_array_equal(rotation.cos, jnp.ones_like(rotation.cos))
    np.testing.assert_array_equal(rotation.sin, jnp.zeros_like(rotation.sin))
    np.testing.assert_allclose(rotation.query_scale[0, :, 0, 0], 1 + 0.5 * np.log1p((POSITIONS + 1) // 4), rtol=1e-6)
    assert not rotation.is_rotated
    chunked = backbone_rotary(LLAMA4, BATCH["positions"], "chunked")
    assert jax.tree.structure(chunked) == jax.tree.structure(rotation)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_pattern": ("chunked",)}, "attention_chunk is 0 and attention_pattern"),
        ({"attention_chunk": 4}, "attention_chunk is 4 and attention_pattern"),
        ({"attention_pattern": ("local",)}, "attention_window is 0"),
        (
            {"attention_pattern": ("local", "chunked"), "attention_chunk": 4, "attention_window": 4},
            "local or chunked, not both",
        ),
        ({"attention_pattern": ("unrotated",), "positions": "learned"}, "need rotary positions without rope_sections"),
        ({"attention_temperature": AttentionTemperature()}, "attention_temperature is of unrotated layers"),
        ({"qk_norm": "rotated", "positions": "learned"}, "qk_norm is 'rotated'; positions are 'learned'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BackboneConfig(**options)
