"""The backbone with its keys and values kept, so that every further token costs one position."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from configs.architectures import ModelConfig
from mmjax.models.layers.positions import RotaryCosSin
from mmjax.models.layers.transformer import TransformerBlock
from mmjax.models.modalities.backbone import LanguageHead, TokenEmbedding, backbone_rotary, causal_mask
from mmjax.models.model import run_module, with_tied_parameters
from mmjax.models.structure.module import Module
from mmjax.models.structure.parameters import layer_name, piece_definition
from pallas_kernels.packed_attention import SegmentMask, make_segment_mask, packed_attention
from sharding.axes import Axes
from sharding.trees import Tree

ALONE = Axes()


class KVCache(NamedTuple):
    """Keys and values of one layer, `[r, t, k, e]`, t of the longest text."""

    keys: Float[Array, "r t k e"]
    values: Float[Array, "r t k e"]


class DecodeState(NamedTuple):
    """Texts that are being written, one a row.

    Attributes:
        layers: What each layer keeps.
        lengths: Places taken.
        positions: Position of the next token.
    """

    caches: tuple[KVCache, ...]
    lengths: Int[Array, " r"]
    positions: Int[Array, " r"]


class CachedBackbone:
    """The backbone of a model as two steps: the prompts at once, then a token of each.

    Args:
        config: The model.
        modules: Its modules, in topological order.

    Attributes:
        name: Of the backbone.
    """

    def __init__(self, config: ModelConfig, modules: tuple[Module, ...]) -> None:
        self._config, self.name = config.backbone, config.backbone.name
        self._encoders = [module for module in modules if module.name in {of.name for of in config.encoders}]
        (self._module,) = (module for module in modules if module.name == config.backbone.name)
        self._embed, self._blocks, self._head = self._module.compute_pieces

    def prefill(
        self, parameters: Tree, arrays: Mapping[str, Mapping[str, jax.Array]], lengths: Int[Array, " r"]
    ) -> tuple[DecodeState, Float[Array, "r s d"]]:
        """Reads prompts, one a row, and gives the normed hidden states of all their places.

        Args:
            parameters: Of the whole model.
            arrays: By module, as of a batch; every row holds one sample.
            lengths: Tokens of each prompt.
        """
        batch = arrays[self.name]
        seen = {
            encoder.name: run_module(encoder, parameters[encoder.name], {}, arrays[encoder.name]).activations[self.name]
            for encoder in self._encoders
        }
        x = self._embedding(parameters)(seen, batch, ALONE)
        b, s, _ = x.shape
        shape = (b, s, self._config.kv_heads, self._config.head_width)
        empty = tuple(KVCache(jnp.zeros(shape, x.dtype), jnp.zeros(shape, x.dtype)) for _ in range(self._blocks.layers))
        rotary = backbone_rotary(self._config, batch["positions"])
        x, layers = self._through(parameters, x, causal_mask(batch), rotary, empty, jnp.zeros((b,), jnp.int32))
        last = jnp.take_along_axis(batch["positions"], lengths[:, None] - 1, axis=1)[:, 0]
        return DecodeState(layers, lengths, last + 1), self._language_head(parameters).norm(x)

    def decode(
        self, parameters: Tree, texts: DecodeState, tokens: Int[Array, " r"]
    ) -> tuple[DecodeState, Float[Array, "r v"]]:
        """Appends a token to every text, and gives the logits of the one after it. There must be a place left."""
        x = self._embedding(parameters).embed_tokens(tokens[:, None], texts.positions[:, None], ALONE)
        places = jnp.arange(texts.caches[0].keys.shape[1])
        taken = (places[None, :] <= texts.lengths[:, None]).astype(jnp.int32)
        packing = make_segment_mask(jnp.ones_like(taken[:, :1]), keys=taken)
        rotary = backbone_rotary(self._config, texts.positions[:, None])
        x, layers = self._through(parameters, x, packing, rotary, texts.caches, texts.lengths)
        head = self._language_head(parameters)
        return DecodeState(layers, texts.lengths + 1, texts.positions + 1), head.logits(head.norm(x))[:, 0]

    def logits_at(self, parameters: Tree, hidden: Float[Array, "r s d"], at: Int[Array, " r"]) -> Float[Array, "r v"]:
        """Of the token after one place of each row."""
        chosen = jnp.take_along_axis(hidden, at[:, None, None], axis=1)
        return self._language_head(parameters).logits(chosen)[:, 0]

    def _through(
        self,
        parameters: Tree,
        x: Float[Array, "r s d"],
        packing: SegmentMask,
        rotary: RotaryCosSin | None,
        layers: tuple[KVCache, ...],
        at: Int[Array, " r"],
    ) -> tuple[Float[Array, "r s d"], tuple[KVCache, ...]]:
        definition, own = piece_definition(self._blocks), parameters[self.name][self._blocks.name]
        kept = []
        for number, layer in enumerate(layers):
            x, layer = block_with_cache(definition.bind(own[layer_name(number)]), x, packing, rotary, layer, at)
            kept.append(layer)
        return x, tuple(kept)

    def _embedding(self, parameters: Tree) -> TokenEmbedding:
        return piece_definition(self._embed).bind(parameters[self.name][self._embed.name][layer_name(0)])

    def _language_head(self, parameters: Tree) -> LanguageHead:
        own = parameters[self.name]
        return piece_definition(self._head).bind(
            with_tied_parameters(own, self._head, own[self._head.name][layer_name(0)])
        )


def block_with_cache(
    block: TransformerBlock,
    x: Float[Array, "r s d"],
    packing: SegmentMask,
    rotary: RotaryCosSin | None,
    kept: KVCache,
    at: Int[Array, " r"],
) -> tuple[Float[Array, "r s d"], KVCache]:
    """A block over s new places of each row, from place `at` on, which see what is kept as `packing` says."""
    normed = block.attention_norm(x)
    query, key, value = block.attention.project_query_key_value(normed, None, ALONE, rotary)
    keys, values = (jax.vmap(_put)(*pair, at) for pair in ((kept.keys, key), (kept.values, value)))
    seen = packed_attention(query, keys, values, packing)
    return block.add_attention_and_mlp(x, normed, block.attention.project_output(seen, ALONE), ALONE), KVCache(
        keys, values
    )


def _put(row: Float[Array, "t k e"], new: Float[Array, "s k e"], at: Int[Array, ""]) -> Float[Array, "t k e"]:
    return jax.lax.dynamic_update_slice(row, new, (at, 0, 0))
