"""The language-model backbone: from tokens and encoders' outputs to the language loss and to conditions.

`model.model_modules` builds it by `backbone_module`; generation runs its pieces with a KV cache.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from configs.architectures import BackboneConfig, ModelConfig
from configs.modules.backbone import NEWLINE
from configs.modules.block_runs import BackboneBlockRun, has_experts_at
from mmjax.models.layers.attention import Attention, build_attention
from mmjax.models.layers.chunked_logits import ChunkedLogits, chunked_logits
from mmjax.models.layers.context_parallel import (
    context_positions,
    gather_context,
    local_positions,
    take_positions,
)
from mmjax.models.layers.experts import BalancingWeights, MixtureOfExperts
from mmjax.models.layers.latent_attention import LatentAttention
from mmjax.models.layers.layer_kinds import InputsOfKinds, inputs_of_layer
from mmjax.models.layers.linear import NO_AXES, normal_parameter
from mmjax.models.layers.matmul_formats import build_block
from mmjax.models.layers.normalization import build_norm
from mmjax.models.layers.tensor_parallel import (
    all_gather_sequence,
    first_vocabulary_row,
    gather_for_columns,
    sequence_positions,
)
from mmjax.models.layers.transformer import SharedInputs, TransformerBlock, block_stack
from mmjax.models.modalities.attention_kinds import block_inputs
from mmjax.models.modalities.deepstack import EarlyActivations, early_block, split_tokens
from mmjax.models.modalities.losses import cross_entropy, token_predictions, weighted_loss
from mmjax.models.structure.module import (
    ActivationsByModule,
    LayerOutput,
    Module,
    ModuleInputs,
    ModuleOutput,
    Piece,
    PieceModule,
)
from sharding.axes import Axes


def backbone_module(config: ModelConfig) -> Module:
    """Builds the backbone: token embedding, blocks, language head."""
    backbone = config.backbone
    return Module(
        backbone.name,
        (
            Piece(name="embed", part=backbone.name, build=lambda: TokenEmbedding(config), sequence_parallel=True),
            *(_early_piece(backbone, layer) for layer in range(config.early_blocks)),
            *(_stack(backbone, run) for run in backbone.block_runs(config.early_blocks)),
            Piece(
                name="head",
                part=backbone.name,
                build=lambda: LanguageHead(config),
                tied_parameters=(("embedding", "embed", "embedding"),) if backbone.tie_embeddings else (),
                sequence_parallel=True,
            ),
        ),
        inputs=tuple(encoder.name for encoder in config.encoders),
    )


def _stack(backbone: BackboneConfig, run: BackboneBlockRun) -> Piece:
    """Makes the piece of a run of equal blocks."""
    block = ExpertBlock if run.has_experts else BackboneBlock
    return block_stack(
        backbone,
        block,
        name=run.name,
        layers=run.count,
        layer_inputs=lambda shared, layer: block.inputs_of_layer(backbone, shared, layer + run.first),
    )


def _early_piece(backbone: BackboneConfig, layer: int) -> Piece:
    """Makes the piece of one of the first blocks, to whose outputs features of encoders are added."""
    kind = early_block(ExpertBlock if has_experts_at(backbone.experts, layer) else BackboneBlock)
    return Piece(
        name=f"early_{layer}",
        part=backbone.name,
        build=lambda: build_block(kind, backbone),
        shared_inputs=lambda batch, axes=NO_AXES: kind.inputs_of_layer(
            backbone, kind.shared_inputs(backbone, batch, axes), layer
        ),
        sequence_parallel=True,
    )


def embedding_table(config: BackboneConfig) -> nnx.Param:
    """Creates an embedding table `[v, d]`, whose rows are split over the tensor axes."""
    return normal_parameter((config.vocabulary, config.width), ("tensor", None), 0.02)


def insert_encoder_tokens(
    x: Float[Array, "r s d"], tokens: Float[Array, "r t d"], index: Int[Array, "r s"]
) -> Float[Array, "r s d"]:
    """Replaces embeddings by the tokens of an encoder.

    Args:
        x: Embedded row.
        tokens: The encoder's tokens for the row.
        index: Number of the encoder's token at each position; negative for none.
    """
    inserted = jnp.take_along_axis(tokens, jnp.maximum(index, 0)[:, :, None], axis=1)  # [r, s, d]
    return jnp.where((index >= 0)[:, :, None], inserted, x)


class TokenEmbedding(PieceModule):
    """Embeds tokens and inserts the outputs of encoders at their positions."""

    def __init__(self, config: ModelConfig) -> None:
        """Creates the embedding table `[v, d]` and, if there are any, learned positions and the newline vector."""
        self.encoders = tuple(encoder.name for encoder in config.encoders)
        self.early_blocks, self.scale = config.early_blocks, config.backbone.embedding_scale
        learned = config.backbone.positions == "learned"
        self.batch_keys = ("tokens", *(("positions",) * learned), *(f"{name}_index" for name in self.encoders))
        self.embedding = embedding_table(config.backbone)
        shape = (config.backbone.max_positions, config.backbone.width)
        self.positions = normal_parameter(shape, (None, None), 0.02) if learned else None
        self.newline = normal_parameter((config.backbone.width,), (None,), 0.02) if config.backbone.newline else None

    @jax.named_scope("embedding")
    def __call__(
        self, inputs: ActivationsByModule, batch: ModuleInputs, axes: Axes
    ) -> Float[Array, "r q d"] | EarlyActivations:
        """Embeds this rank's q positions of all s positions of a row."""
        x = sequence_positions(self._look_up(context_positions(batch["tokens"], axes), axes), axes)
        features = [jnp.zeros_like(x)] * self.early_blocks
        for name in self.encoders:
            index = local_positions(batch[f"{name}_index"], axes)
            tokens, *more = split_tokens(inputs[name], x.shape[-1])
            x = insert_encoder_tokens(x, tokens, index)
            if self.newline is not None:
                x = jnp.where((index == NEWLINE)[:, :, None], self.newline[...].astype(x.dtype), x)
            features[: len(more)] = [insert_encoder_tokens(*pair, index) for pair in zip(features, more, strict=False)]
        if self.positions is not None:
            x = x + self.positions[...][local_positions(batch["positions"], axes)]
        return EarlyActivations(x, tuple(features)) if features else x

    @jax.named_scope("embedding")
    def embed_tokens(
        self, tokens: Int[Array, "r s"], positions: Int[Array, "r s"], axes: Axes
    ) -> Float[Array, "r s d"]:
        """Embeds text tokens at their positions, without any encoder's outputs."""
        x = self._look_up(tokens, axes)
        return x if self.positions is None else x + self.positions[...][positions]

    def _look_up(self, tokens: Int[Array, "r s"], axes: Axes) -> Float[Array, "r s d"]:
        """Looks up this rank's rows of the table, and sums over the ranks: exactly one has each token."""
        table = self.embedding[...]
        local = tokens - first_vocabulary_row(table.shape[0], axes)
        is_local = (local >= 0) & (local < table.shape[0])
        x = jnp.where(is_local[..., None], table[jnp.where(is_local, local, 0)], jnp.zeros((), table.dtype))
        x = x if self.scale == 1.0 else x * jnp.asarray(self.scale, x.dtype)
        return lax.psum(x, axes.tensor) if axes.tensor else x


class BackboneBlock(TransformerBlock):
    """A transformer block with causal attention within each segment and branch; some tokens may attend both ways."""

    batch_keys = ("segments", "branches", "positions")

    def __init__(self, config: BackboneConfig) -> None:
        """Creates the layers of one block."""
        super().__init__(config)
        if config.bidirectional != "none":
            self.batch_keys = (*type(self).batch_keys, "blocks")

    @staticmethod
    def build_attention(config: BackboneConfig) -> Attention | LatentAttention:
        """Builds attention with keys and values of its own, or expanded from latent vectors."""
        if config.latent_attention is None:
            return build_attention(config)
        return LatentAttention(
            config.width,
            config.heads,
            config.latent_attention,
            score_scale=config.score_scale,
            score_softcap=config.score_softcap,
        )

    @staticmethod
    def shared_inputs(config: BackboneConfig, batch: ModuleInputs, axes: Axes = NO_AXES) -> InputsOfKinds:
        """Computes the causal mask of the packed rows, and the rotation of queries and keys, of every kind of layer."""
        return block_inputs(config, batch, axes)

    @staticmethod
    def inputs_of_layer(config: BackboneConfig, shared: InputsOfKinds, layer: int | jax.Array) -> SharedInputs:
        """Returns the mask and the rotation of a layer."""
        return inputs_of_layer(shared, config.kind_of_layers, layer)


class ExpertSharedInputs(NamedTuple):
    """Inputs that all blocks of a stage with experts read in addition to their activations.

    Attributes:
        attention: Mask and rotation of every kind of layer; of a single kind once `inputs_of_layer` has chosen.
        balancing: How much each token counts in the load-balancing loss.
    """

    attention: InputsOfKinds
    balancing: BalancingWeights


class ExpertBlock(BackboneBlock):
    """A block of the backbone whose feed-forward layer is a mixture of experts."""

    batch_keys = (*BackboneBlock.batch_keys, "balancing_weights")

    def __init__(self, config: BackboneConfig) -> None:
        """Creates the layers of one block."""
        super().__init__(config)
        assert config.experts is not None, "a block with experts is built only where the backbone has some"
        self.layers_with_experts = len(config.layers_with_experts)
        self.mlp = MixtureOfExperts(config.experts, config.width, activation=config.activation)

    @staticmethod
    def shared_inputs(config: BackboneConfig, batch: ModuleInputs, axes: Axes = NO_AXES) -> ExpertSharedInputs:
        """Computes masks and rotations, and the tokens' weights in the load-balancing loss."""
        balancing = BalancingWeights(
            *(context_positions(batch[name], axes) for name in ("segments", "balancing_weights"))
        )
        return ExpertSharedInputs(BackboneBlock.shared_inputs(config, batch, axes), balancing)

    @staticmethod
    def inputs_of_layer(
        config: BackboneConfig, shared: ExpertSharedInputs, layer: int | jax.Array
    ) -> ExpertSharedInputs:
        """Returns the shared inputs of a layer."""
        return shared._replace(attention=inputs_of_layer(shared.attention, config.kind_of_layers, layer))

    @jax.named_scope("block")
    def __call__(self, x: Float[Array, "r q d"], shared: ExpertSharedInputs, axes: Axes) -> LayerOutput:
        """Applies the block. Its auxiliary loss is its share of the mean over all layers with experts."""
        assert isinstance(shared.attention, SharedInputs), "`inputs_of_layer` chooses those of one layer"
        mask, rotary = shared.attention
        normed = self.attention_input(x)
        x, normed = self.add_attention(x, normed, self.attention(normed, axes, mask=mask, rotary=rotary))
        # Tensor ranks route all positions, because the balance of a sample is measured over all of its tokens.
        y, loss = self.mlp.with_balancing_loss(
            all_gather_sequence(normed, axes), shared.balancing, axes.without_sequence
        )
        y = sequence_positions(y, axes)
        return LayerOutput(self.add_mlp(x, y), loss / self.layers_with_experts)


class LanguageHead(PieceModule):
    """Final norm, language loss over a vocabulary split over the tensor axes, and conditions of the generators."""

    def __init__(self, config: ModelConfig) -> None:
        """Creates the norm and the output embedding `[v, d]`."""
        self.generators = tuple(generator.name for generator in config.generators)
        self.batch_keys = ("targets", "weights", *(f"{name}_conditions" for name in self.generators))
        self.loss, self.softcap = config.backbone.loss or cross_entropy, config.backbone.logit_softcap
        self.vocabulary = config.backbone.vocabulary
        self.norm = build_norm(config.backbone, config.backbone.width)
        self.embedding = embedding_table(config.backbone)

    def logits(self, normed: Float[Array, "r s d"]) -> Float[Array, "r s v"]:
        """Computes float32 logits of normed hidden states on one device, over the whole vocabulary at once."""
        return self._chunks(normed, NO_AXES).whole()

    def _chunks(self, normed: Float[Array, "r s d"], axes: Axes) -> ChunkedLogits:
        return chunked_logits(normed, self.embedding[...], self.vocabulary, axes, softcap=self.softcap)

    @jax.named_scope("language_head")
    def __call__(self, x: Float[Array, "r q d"], batch: ModuleInputs, axes: Axes) -> ModuleOutput:
        """Returns the language loss, whether each target is the most likely token, and each generator's conditions."""
        hidden = self.norm(x)
        targets, weights = (context_positions(batch[name], axes) for name in ("targets", "weights"))
        predictions = token_predictions(self._chunks(gather_for_columns(hidden, axes), axes), targets, axes)
        loss, auxiliary_losses = weighted_loss(self.loss, predictions, weights, axes)
        hidden = all_gather_sequence(hidden, axes) if self.generators else hidden  # [r, s / cp, d]
        length = batch["targets"].shape[1]
        conditions = {
            name: hidden_states_at(hidden, batch[f"{name}_conditions"], length, axes) for name in self.generators
        }
        correct = gather_context(predictions.is_most_likely, axes)
        return ModuleOutput(conditions, loss, {"correct": correct}, auxiliary_losses)


def hidden_states_at(
    hidden: Float[Array, "r s d"], positions: Int[Array, "r g q"], length: int, axes: Axes
) -> Float[Array, "r g q d"]:
    """Takes the hidden states at q positions for each of the g generated images of a row of `length` positions."""
    rows, images, count = positions.shape
    flat = take_positions(hidden, positions.reshape(rows, images * count), length, axes)  # [r, g q, d]
    return flat.reshape(rows, images, count, hidden.shape[-1])
