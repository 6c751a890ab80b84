"""Language models: the configuration of a decoder-only backbone, from which its Flax module and its costs are made."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np

from configs.attention.attention_kinds import AttentionKind, AttentionTemperature
from configs.attention.latent_attention import LatentAttentionConfig
from configs.attention.rope import RopeScaling
from configs.common.checks import require_loss, require_one_of, require_positive
from configs.common.short_repr import short_repr
from configs.modules.backbone_checks import (
    check_experts,
    check_latent_attention,
    check_pattern,
    check_rotary,
    check_sections,
)
from configs.modules.block_runs import BackboneBlockRun, block_runs, has_experts_at
from configs.modules.experts import ExpertsConfig
from configs.modules.transformer import TransformerConfig

POSITIONS = ("rotary", "learned")
Bidirectional = Literal["none", "images", "prompt"]
"""Which tokens attend to each other both ways: none, the tokens of one image (Gemma 3) or of a prompt (PaliGemma)."""

NEWLINE = -2
"""Encoder index of a token whose embedding the newline vector replaces."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackboneConfig(TransformerConfig):
    """A decoder-only language model; by default Llama's blocks (arXiv 2302.13971).

    Attributes:
        vocabulary: Vocabulary size v; at least the tokenizer's size.
        positions: Position embedding: `rotary`, inside attention, or `learned`, a table added to the embedding (GPT).
        max_positions: Positions of the learned table. Rows of data (`DataConfig.tokens`) may not be longer, because one
            sample may fill a row.
        rope_base: Base of the rotary frequencies.
        rope_scaling: How the frequencies are scaled for longer sequences; None for no scaling.
        rope_width: Channels of a head, the first ones, that rotate (Phi-4-mini, arXiv 2503.01743); 0 for all.
        rope_sections: Pairs of channels of a head that rotate by time, row and column (Qwen2-VL's multimodal positions,
            arXiv 2409.12191, section 2.1); empty where all pairs rotate by one position.
        rope_interleaved: Whether pairs rotate by time, row and column in turn (Qwen3-VL), while sections last, and the
            rest by time; else each section is a run of pairs.
        positions_per_second: Positions along time that a second of a video clip takes where its frames follow one
            another (Qwen2.5-VL); 0 for one each group of frames (Qwen2-VL).
        bidirectional: Tokens that attend to each other both ways: `none`, the tokens of one image (`images`, Gemma 3),
            or the tokens of the trunk, and of each branch, before its first target (`prompt`, PaliGemma).
        attention_pattern: Kinds of attention of the layers, repeated to the depth: `global`, to all earlier positions;
            `local`, to the positions of a window (Gemma 2 and 3; all layers of Mistral); `chunked`, to the positions
            of its chunk (Llama 4); `unrotated`, to all, without rotation of queries and keys (arXiv 2305.19466,
            Llama 4).
        attention_window: Positions, itself included, that a position of a local layer attends to.
        attention_chunk: Positions of a chunk of chunked layers; the first begins with the text.
        attention_temperature: Sharper scores at later positions in unrotated layers (Llama 4); None for none.
        local_rope_base: Base of the rotary frequencies of local layers, which are then not scaled; 0 for the
            frequencies of global layers.
        latent_attention: Attention whose keys and values are expanded from latent vectors (DeepSeek-V2 and V3); None
            for keys and values of their own.
        embedding_scale: Factor of the token embeddings, not of encoders' outputs (Gemma).
        newline: Whether a learned vector takes the place of tokens that end a row of an image's map (`image_newline` of
            LLaVA-NeXT and LLaVA-OneVision).
        logit_softcap: Logits are softcap * tanh(logit / softcap) (Gemma 2); 0 for no limit.
        tie_embeddings: Whether the output head is the input embedding.
        experts: A mixture of experts in place of the feed-forward layer of all blocks, or of some (`dense_layers` and
            `interval`), so that the others alone have the width `ffn`; None for none. Experts are gated.
        loss: Computes the loss of every target token from `mmjax.models.modalities.losses.TokenPredictions`
            (docs/how_to/extending.md); None for cross-entropy.
    """

    name: str = "backbone"
    depth: int = 4
    kv_heads: int = 2
    norm: str = "rmsnorm"
    norm_epsilon: float = 1e-5
    activation: str = "silu"
    gated: bool = True
    biases: tuple[str, ...] = ()
    vocabulary: int = 64
    positions: str = "rotary"
    max_positions: int = 2048
    rope_base: float = 10000.0
    rope_scaling: RopeScaling | None = None
    rope_width: int = 0
    rope_sections: tuple[int, ...] = ()
    rope_interleaved: bool = False
    positions_per_second: float = 0.0
    bidirectional: Bidirectional = "none"
    attention_pattern: tuple[AttentionKind, ...] = ("global",)
    attention_window: int = 0
    attention_chunk: int = 0
    attention_temperature: AttentionTemperature | None = None
    local_rope_base: float = 0.0
    latent_attention: LatentAttentionConfig | None = None
    embedding_scale: float = 1.0
    newline: bool = False
    logit_softcap: float = 0.0
    tie_embeddings: bool = False
    experts: ExpertsConfig | None = None
    loss: Callable[[Any], Any] | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_loss(self, "loss")
        super().__post_init__()
        require_positive(self, "vocabulary", "kv_heads", "max_positions")
        require_one_of(self, "positions", POSITIONS)
        check_rotary(self)
        check_latent_attention(self)
        check_experts(self)
        check_sections(self)
        check_pattern(self)

    @property
    def layers_with_experts(self) -> tuple[int, ...]:
        """Numbers of the blocks that have experts."""
        return tuple(layer for layer in range(self.depth) if has_experts_at(self.experts, layer))

    def block_runs(self, before: int = 0) -> tuple[BackboneBlockRun, ...]:
        """The runs of equal blocks behind the first `before` ones."""
        return block_runs(self.experts, self.depth, before)

    def with_depth(self, depth: int) -> Self:
        """The backbone with another number of blocks, of which at least the last has experts if some have."""
        experts = self.experts and self.experts.with_depth(depth)
        return dataclasses.replace(self, depth=depth, experts=experts)

    @property
    def query_width(self) -> int:
        """Width of all queries together."""
        return self.heads * self.latent_attention.head_width if self.latent_attention else super().query_width

    @property
    def rotary_width(self) -> int:
        """Channels of a head that rotate by its position."""
        return self.latent_attention.rope_width if self.latent_attention else self.rope_width or self.head_width

    @property
    def attention_kinds(self) -> tuple[AttentionKind, ...]:
        """The kinds of attention of the layers, without repetitions, in the order of their first layers."""
        return tuple(dict.fromkeys(self.attention_pattern[: self.depth]))

    @property
    def kind_of_layers(self) -> tuple[int, ...]:
        """For every layer the number of its kind in `attention_kinds`."""
        length = len(self.attention_pattern)
        return tuple(self.attention_kinds.index(self.attention_pattern[n % length]) for n in range(self.depth))

    @property
    def rope_axes(self) -> np.ndarray:
        """int[e/2], the axis (0 time, 1 row, 2 column) by whose position each pair of channels of a head rotates."""
        if not self.rope_interleaved:
            return np.repeat(np.arange(3), self.rope_sections)
        axes = np.zeros(sum(self.rope_sections), np.int64)
        for axis in (1, 2):
            axes[axis : 3 * self.rope_sections[axis] : 3] = axis
        return axes
