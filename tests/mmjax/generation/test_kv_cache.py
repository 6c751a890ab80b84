"""Decoding with a KV cache gives the logits of computing the whole text again."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import BackboneConfig, ExpertsConfig, LatentAttentionConfig, ModelConfig
from configs.attention.attention_kinds import AttentionTemperature
from configs.attention.rope import Llama3Scaling, LongRopeScaling
from mmjax.generation.decoding import decode_answers
from mmjax.generation.kv_cache import CachedBackbone
from mmjax.generation.sampling import Sampling
from mmjax.models.model import model_modules
from mmjax.models.structure.parameters import init_module_parameters
from tests.tiers import first_in_default

ROW = 12
PLAIN = BackboneConfig(vocabulary=16, width=16, depth=2, heads=4, kv_heads=2, ffn=24)
KINDS = {
    "llama": dataclasses.replace(PLAIN, rope_scaling=Llama3Scaling(4.0, original_positions=8)),
    "gpt": dataclasses.replace(
        PLAIN,
        norm="layernorm",
        activation="gelu_tanh",
        gated=False,
        positions="learned",
        max_positions=ROW,
        tie_embeddings=True,
    ),
    "mixtral": dataclasses.replace(PLAIN, experts=ExpertsConfig(count=4, top_k=2, ffn=12)),
    "dense first layers": dataclasses.replace(PLAIN, depth=3, experts=ExpertsConfig(count=4, ffn=12, dense_layers=2)),
    "gemma": dataclasses.replace(
        PLAIN,
        depth=3,
        attention_width=24,
        norms="both",
        norm_offset=True,
        attention_pattern=("local", "global"),
        attention_window=3,
        local_rope_base=100.0,
        score_softcap=2.0,
        logit_softcap=3.0,
    ),
    "gpt-oss": dataclasses.replace(
        PLAIN, attention_sinks=True, attention_pattern=("local", "global"), attention_window=4, biases=("query",)
    ),
    "phi": dataclasses.replace(
        PLAIN,
        width=32,
        rope_width=6,
        rope_scaling=LongRopeScaling(
            short_factors=(1.0, 2.0, 3.0), long_factors=(4.0, 5.0, 6.0), original_positions=4, factor=4.0, long=True
        ),
    ),
    "llama 4": dataclasses.replace(
        PLAIN,
        depth=3,
        qk_norm="rotated",
        attention_pattern=("chunked", "unrotated"),
        attention_chunk=4,
        attention_temperature=AttentionTemperature(0.7, 3),
    ),
    "deepseek": dataclasses.replace(
        PLAIN,
        kv_heads=4,
        latent_attention=LatentAttentionConfig(query_rank=6, kv_rank=8, nope_width=4, rope_width=2, value_width=3),
    ),
    "parallel, normed queries": dataclasses.replace(PLAIN, parallel_block=True, qk_norm="head", layer_scale=0.1),
}
TEXTS = np.random.default_rng(0).integers(0, 16, (3, ROW))
END = 0


@functools.cache
def made(config: BackboneConfig):
    """(backbone, parameters, compiled prefill)."""
    modules = model_modules(ModelConfig((), config, ()))
    parameters = {"backbone": init_module_parameters(0, modules[-1])}
    parameters = jax.tree.map(lambda leaf: jnp.asarray(leaf) * 4, parameters)  # or all logits are nearly alike
    backbone = CachedBackbone(ModelConfig((), config, ()), modules)
    return backbone, parameters, jax.jit(functools.partial(backbone.prefill, parameters))


def arrays(texts: np.ndarray, lengths: np.ndarray) -> dict:
    inside = np.arange(texts.shape[1])[None] < lengths[:, None]
    columns = {
        "tokens": np.where(inside, texts, 0),
        "segments": inside.astype(np.int32),
        "branches": np.zeros_like(texts),
        "positions": np.where(inside, np.arange(texts.shape[1])[None], 0),
    }
    return {"backbone": {name: jnp.asarray(column, jnp.int32) for name, column in columns.items()}}


@pytest.mark.parametrize("kind", first_in_default(KINDS))
def test_decode_gives_the_logits_of_the_whole_text(kind):
    backbone, parameters, read = made(KINDS[kind])
    starts, every = np.array([3, 7, 5]), np.full(3, ROW)
    _, hidden = read(arrays(TEXTS, every), jnp.asarray(every))
    write = jax.jit(functools.partial(backbone.decode, parameters))
    texts, _ = read(arrays(TEXTS, starts), jnp.asarray(starts))
    for step in range(5):
        texts, logits = write(texts, jnp.asarray(TEXTS[np.arange(3), starts + step], jnp.int32))
        expected = backbone.logits_at(parameters, hidden, jnp.asarray(starts + step))
        assert np.std(expected) > 0.1
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def written(lengths: np.ndarray, rows: slice = slice(None), sampling: Sampling | None = None, most: int = 6):
    backbone, parameters, _ = made(KINDS["llama"])
    write = functools.partial(
        decode_answers,
        backbone,
        allowed_tokens=jnp.ones(16, bool),
        end_token=END,
        max_tokens=most,
        sampling=sampling or Sampling(),
    )
    seeds = jnp.arange(3, dtype=jnp.int32)[rows]
    asked = arrays(TEXTS[rows], lengths[rows])
    return [np.asarray(array) for array in jax.jit(write)(parameters, asked, jnp.asarray(lengths[rows]), seeds)]


@pytest.mark.parametrize(
    "sampling", first_in_default([Sampling(repetition_penalty=1.5), Sampling(), Sampling(1.5, 0.9)])
)
def test_an_answer_depends_on_its_own_prompt_and_seed_alone(sampling):
    lengths = np.array([3, 7, 5])
    together = written(lengths, sampling=sampling)
    for row in range(3):
        alone = written(lengths, slice(row, row + 1), sampling)
        count = alone[1][0]
        assert together[1][row] == count and together[2][row] == alone[2][0]
        np.testing.assert_array_equal(together[0][row, :count], alone[0][0, :count])


def test_decoding_stops_where_the_row_is_full():
    lengths = np.array([ROW, ROW - 1, 3])
    _, counts, ended = written(lengths)
    assert all(count <= room for count, room in zip(counts, (1, 2, 6), strict=True))
    assert (ended | (counts == (1, 2, 6))).all()


def test_positions_along_three_axes_go_on_after_the_largest():
    """A prompt with a picture of 2 x 3 cells, then text: decoding equals computing the whole again."""
    backbone, parameters, prefill = made(
        dataclasses.replace(PLAIN, width=32, rope_sections=(2, 1, 1), rope_interleaved=True)
    )
    cells = np.indices((2, 3)).reshape(2, -1).T
    picture = np.concatenate([np.zeros((6, 1), int), cells], axis=1) + 1
    places = np.concatenate([np.zeros((1, 3), int), picture, np.arange(4, 9)[:, None].repeat(3, axis=1)])

    def read(length: int):
        column = arrays(TEXTS, np.full(3, length))
        inside = np.arange(ROW)[:, None] < length
        column["backbone"]["positions"] = jnp.asarray(np.where(inside, places, 0)[None].repeat(3, axis=0), jnp.int32)
        return prefill(column, jnp.full(3, length))

    write = jax.jit(functools.partial(backbone.decode, parameters))
    _, hidden = read(ROW)
    for start in (7, 9):  # right behind the picture, and in the text
        texts, _ = read(start)
        np.testing.assert_array_equal(texts.positions, places[start, 0])
        for step in range(3):
            texts, logits = write(texts, jnp.asarray(TEXTS[:, start + step], jnp.int32))
            expected = backbone.logits_at(parameters, hidden, jnp.full(3, start + step))
            np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bidirectional", ["images", "prompt"])
def test_tokens_of_a_block_see_each_other_in_the_prompt(bidirectional):
    """Prompts of 7 tokens, in which some or all attend both ways; what is decoded behind them attends causally."""
    backbone, parameters, prefill = made(dataclasses.replace(PLAIN, bidirectional=bidirectional))
    blocks = np.array([0, 1, 1, 1, 0, 2, 2] if bidirectional == "images" else [1] * 7)

    def read(length: int, blocks: np.ndarray):
        column = arrays(TEXTS, np.full(3, length))
        padded = np.pad(blocks, (0, ROW - len(blocks)))[None].repeat(3, axis=0)
        column["backbone"]["blocks"] = jnp.asarray(padded, jnp.int32)
        return prefill(column, jnp.full(3, length))

    write = jax.jit(functools.partial(backbone.decode, parameters))
    _, hidden = read(ROW, blocks)
    texts, _ = read(7, blocks)
    for step in range(3):
        texts, logits = write(texts, jnp.asarray(TEXTS[:, 7 + step], jnp.int32))
        expected = backbone.logits_at(parameters, hidden, jnp.full(3, 7 + step))
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    _, causal = read(ROW, 0 * blocks)
    differs = np.any(np.abs(causal - hidden) > 1e-3, axis=(0, 2))
    assert differs[1] and differs[-1] and differs[0] == (bidirectional == "prompt")
