"""The backbone with a KV cache, so that every further token costs the computation of one position.

`decoding.py` decodes text with it; `image_generation.py` takes the hidden states of its prefill.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from configs.architectures import ModelConfig
from configs.attention.attention_kinds import AttentionKind
from mmjax.models.layers.layer_kinds import InputsOfKinds, inputs_of_layer
from mmjax.models.layers.positions import Rotation
from mmjax.models.layers.transformer import SharedInputs, TransformerBlock
from mmjax.models.modalities.attention_kinds import (
    backbone_rotary,
    block_inputs,
)
from mmjax.models.modalities.backbone import LanguageHead, TokenEmbedding
from mmjax.models.modalities.deepstack import EarlyActivations
from mmjax.models.model import run_module, with_tied_parameters
from mmjax.models.structure.module import Module, ModuleInputs
from mmjax.models.structure.parameters import layer_name, piece_definition
from pallas_kernels.packed_attention import make_segment_mask
from pallas_kernels.packed_attention.api import Mask
from sharding.axes import Axes
from sharding.trees import Tree

SINGLE_DEVICE = Axes()


KVCache = tuple[Float[Array, "r t _ _"], Float[Array, "r t _ _"]]
"""The KV cache of a layer: normed and rotated keys, and values; or latent vectors, and the rotated channels of keys.
t is the length of a row, prompt and answer together."""


class DecodeState(NamedTuple):
    """State of decoding, one text a row.

    Attributes:
        caches: KV cache of each layer.
        lengths: Number of tokens in the caches of each row.
        positions: Position of the next token of each row, along all axes alike.
    """

    caches: tuple[KVCache, ...]
    lengths: Int[Array, " r"]
    positions: Int[Array, " r"]


class CachedBackbone:
    """The backbone of a model in two steps: prefill computes the prompts, decode one further token of each row.

    Attributes:
        name: Name of the backbone.
    """

    def __init__(self, config: ModelConfig, modules: tuple[Module, ...]) -> None:
        """Takes the model and its modules in topological order."""
        self._config, self.name = config.backbone, config.backbone.name
        encoder_names = {encoder.name for encoder in config.encoders}
        self._encoders = [module for module in modules if module.name in encoder_names]
        (self._module,) = (module for module in modules if module.name == self.name)
        self._embed, *blocks, self._head = self._module.compute_pieces
        self._layers = [(piece, number) for piece in blocks for number in range(piece.layers or 1)]

    def prefill(
        self, parameters: Tree, arrays: dict[str, ModuleInputs], lengths: Int[Array, " r"]
    ) -> tuple[DecodeState, Float[Array, "r s d"]]:
        """Computes prompts, one a row.

        Args:
            parameters: Parameters of the whole model.
            arrays: Arrays of a batch, by module; every row holds one sample.
            lengths: Number of tokens of each prompt.

        Returns:
            The state for `decode`, and the normed hidden states of all positions.
        """
        batch = arrays[self.name]
        encoder_outputs = {
            encoder.name: run_module(encoder, parameters[encoder.name], {}, arrays[encoder.name]).activations[self.name]
            for encoder in self._encoders
        }
        x = self._token_embedding(parameters)(encoder_outputs, batch, SINGLE_DEVICE)
        activations = x if isinstance(x, EarlyActivations) else EarlyActivations(x, ())
        rows, length, _ = activations.x.shape
        inputs = block_inputs(self._config, batch)
        x, caches = self._run_blocks(parameters, activations, inputs)
        positions = batch["positions"].reshape(rows, length, -1)  # [r, s, 1], or [r, s, 3] of (time, row, column)
        last_positions = jnp.take_along_axis(positions, lengths[:, None, None] - 1, axis=1)[:, 0].max(axis=-1)
        return DecodeState(caches, lengths, last_positions + 1), self._language_head(parameters).norm(x)

    def decode(
        self, parameters: Tree, state: DecodeState, tokens: Int[Array, " r"]
    ) -> tuple[DecodeState, Float[Array, "r v"]]:
        """Appends a token to every row, and computes the logits of the next one. Every row must have room for it."""
        x = self._token_embedding(parameters).embed_tokens(tokens[:, None], state.positions[:, None], SINGLE_DEVICE)
        inputs_by_kind = tuple(self._decode_inputs(state, kind) for kind in self._config.attention_kinds)
        inputs = inputs_by_kind[0] if len(inputs_by_kind) == 1 else inputs_by_kind
        text = EarlyActivations(x, ())
        x, caches = self._run_blocks(parameters, text, inputs, state.caches, state.lengths)  # [r, 1, d]
        head = self._language_head(parameters)
        next_state = DecodeState(caches, state.lengths + 1, state.positions + 1)
        return next_state, head.logits(head.norm(x))[:, 0]

    def logits_at(
        self, parameters: Tree, hidden: Float[Array, "r s d"], positions: Int[Array, " r"]
    ) -> Float[Array, "r v"]:
        """Returns the logits of the token after one position of each row, given normed hidden states."""
        hidden = jnp.take_along_axis(hidden, positions[:, None, None], axis=1)  # [r, 1, d]
        return self._language_head(parameters).logits(hidden)[:, 0]

    def _decode_inputs(self, state: DecodeState, kind: AttentionKind) -> SharedInputs:
        """Mask and rotation of a layer for one new position of each row; a slot of the cache holds one position."""
        slots = jnp.arange(state.caches[0][0].shape[1])[None]
        visible = slots <= state.lengths[:, None]  # [r, t]
        if kind == "local":
            visible &= slots > state.lengths[:, None] - self._config.attention_window
        if kind == "chunked":
            chunk = self._config.attention_chunk
            visible &= slots // chunk == state.lengths[:, None] // chunk
        keys = visible.astype(jnp.int32)
        mask = make_segment_mask(jnp.ones_like(keys[:, :1]), keys=keys)
        return SharedInputs(mask, backbone_rotary(self._config, state.positions[:, None], kind))

    def _run_blocks(
        self,
        parameters: Tree,
        activations: EarlyActivations,
        inputs: InputsOfKinds,
        caches: tuple[KVCache | None, ...] | None = None,
        start: Int[Array, " r"] | None = None,
    ) -> tuple[Float[Array, "r s d"], tuple[KVCache, ...]]:
        """Runs all blocks over s new positions of each row, as `block_with_cache` runs each."""
        caches = caches or (None,) * len(self._layers)
        x, features, new_caches = activations.x, list(activations.features), []
        for layer, ((piece, number), cache) in enumerate(zip(self._layers, caches, strict=True)):
            block = piece_definition(piece).bind(parameters[self.name][piece.name][layer_name(number)])
            mask, rotary = inputs_of_layer(inputs, self._config.kind_of_layers, layer)
            x, cache = block_with_cache(block, x, mask, rotary, cache, start)
            x = x + features.pop(0) if features else x
            new_caches.append(cache)
        return x, tuple(new_caches)

    def _token_embedding(self, parameters: Tree) -> TokenEmbedding:
        layer = parameters[self.name][self._embed.name][layer_name(0)]
        return piece_definition(self._embed).bind(layer)

    def _language_head(self, parameters: Tree) -> LanguageHead:
        module_parameters = parameters[self.name]
        layer = module_parameters[self._head.name][layer_name(0)]
        return piece_definition(self._head).bind(with_tied_parameters(module_parameters, self._head, layer))


def block_with_cache(
    block: TransformerBlock,
    x: Float[Array, "r s d"],
    mask: Mask,
    rotary: Rotation | None,
    cache: KVCache | None = None,
    start: Int[Array, " r"] | None = None,
) -> tuple[Float[Array, "r s d"], KVCache]:
    """Applies a block to s new positions of each row, and appends their keys and values to the cache.

    Args:
        block: The block.
        x: Activations of the new positions.
        mask: Whether each new position attends to each slot of the cache.
        rotary: Rotation of queries and keys at the new positions.
        cache: Keys and values of earlier positions; None where the new positions are whole rows.
        start: Slot of the first new position of each row; with a cache.
    """
    normed = block.attention_input(x)
    query, new = block.attention.project(normed, SINGLE_DEVICE, rotary)
    if cache is not None and start is not None:
        new = jax.tree.map(lambda old, part: jax.vmap(_write_slots)(old, part, start), cache, new)
    heads_output = block.attention.attend(query, *new, mask)  # [r, s, h, width]
    attended = block.attention.project_output(heads_output, SINGLE_DEVICE)
    return block.add_attention_and_mlp(x, normed, attended, SINGLE_DEVICE), new


def _write_slots(
    row: Float[Array, "t k e"], new: Float[Array, "s k e"], start: Int[Array, ""]
) -> Float[Array, "t k e"]:
    return jax.lax.dynamic_update_slice(row, new, (start, 0, 0))
