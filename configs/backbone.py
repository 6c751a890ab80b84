"""Language models."""

import dataclasses

from configs.checks import require_divides, require_positive


@dataclasses.dataclass(frozen=True)
class BackboneConfig:
    """A decoder-only language model: RMSNorm, RoPE, grouped-query attention, SwiGLU (Llama, arXiv 2302.13971) or GELU.

    Attributes:
        name: Module name; batches and plans refer to it.
        vocabulary: Rows v of the embedding; at least the tokenizer's size.
        width, depth, heads, kv_heads, ffn: Model width d, layers l, heads h, key-value heads k, feed-forward width f.
        rope_base: Base of the rotary frequencies.
        gated: Whether the feed-forward layer is SwiGLU; else it is two matmuls with biases around a GELU, as in GPT-3.
        tie_embeddings: Whether the output head is the input embedding.
        norm_epsilon: Added to the mean square in RMSNorm.
    """

    name: str = "backbone"
    vocabulary: int = 64
    width: int = 128
    depth: int = 4
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 256
    rope_base: float = 10000.0
    gated: bool = True
    tie_embeddings: bool = False
    norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        require_positive(self, "vocabulary", "width", "depth", "heads", "kv_heads", "ffn")
        require_divides(self, "heads", "width")
        require_divides(self, "kv_heads", "heads")
        if self.head_width % 2:
            raise ValueError(f"BackboneConfig: head width {self.head_width} is odd; rotary positions need pairs")

    @property
    def head_width(self) -> int:
        """Width e of one attention head."""
        return self.width // self.heads
