"""Language models."""

import dataclasses
from collections.abc import Callable
from typing import Any

from configs.checks import require_loss, require_one_of, require_positive
from configs.rope import RopeScaling
from configs.transformer import ExpertsConfig, TransformerConfig

POSITIONS = ("rotary", "learned")


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
        tie_embeddings: Whether the output head is the input embedding.
        experts: A mixture of experts in place of the feed-forward layer of every block; None for none. Experts are
            gated and have no biases, and `ffn` is ignored.
        loss: Computes the loss of every target token from `mmjax.models.modalities.losses.TokenPredictions`
            (docs/extending.md); None for cross-entropy.
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
    tie_embeddings: bool = False
    experts: ExpertsConfig | None = None
    loss: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        require_loss(self, "loss")
        super().__post_init__()
        require_positive(self, "vocabulary", "kv_heads", "max_positions")
        require_one_of(self, "positions", POSITIONS)
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(f"BackboneConfig: head width {self.head_width} is odd; rotary positions need pairs")
        if self.experts and (not self.gated or "mlp" in (*self.biases, *self.inner_norms)):
            raise ValueError("BackboneConfig.experts are gated, without biases and inner norms; leave those of mlp out")
