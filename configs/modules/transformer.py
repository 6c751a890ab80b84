"""Options that the blocks of encoders and backbones have in common; the base of their configurations."""

import dataclasses

from configs.common.checks import require_divides, require_one_of, require_positive, require_types
from configs.common.short_repr import short_repr

NORMS = ("layernorm", "rmsnorm")
ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "silu", "relu")
PROJECTIONS = ("query", "key", "value", "output", "mlp")
QK_NORMS = ("none", "head", "width", "rotated")
NORM_PLACES = ("before", "after", "both")
LAYERS = ("attention", "mlp")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Blocks of attention and a feed-forward layer, with norms before them, after them, or both.

    Attributes:
        name: Module name; batches and plans refer to it.
        width: Model width d.
        depth: Number of layers l.
        heads: Number of attention heads h.
        ffn: Feed-forward width f.
        kv_heads: Number of key-value heads k; 0 for as many as heads.
        attention_width: Width h e of all heads together, where it is not the model's (Qwen3, Gemma); 0 for d.
        norms: Whether the norms of a block come `before` attention and feed-forward layer, `after` them, over the
            values that these add (OLMo 2, arXiv 2501.00656; EVA-02-CLIP-E, 2303.15389), or `both` (Gemma 2, arXiv
            2408.00118).
        norm_offset: Whether an RMSNorm scales by 1 + its parameter (Gemma).
        score_scale: Factor of the products of queries and keys; 0 for 1 / sqrt(e).
        score_softcap: Scores of attention are softcap * tanh(score / softcap) (Gemma 2); 0 for no limit.
        attention_sinks: Whether every head has a learned score for attending to nothing, which joins the softmax's
            denominator (gpt-oss, arXiv 2508.10925).
        norm: `layernorm` (arXiv 1607.06450) or `rmsnorm` (arXiv 1910.07467).
        norm_epsilon: Added to the variance or the mean square.
        norm_bias: Whether a LayerNorm has a bias; an RMSNorm has none.
        activation: `gelu` (exact), `gelu_tanh`, `quick_gelu` (x sigmoid(1.702 x), CLIP's), `silu` or `relu`.
        gated: Whether the feed-forward layer is down(activation(gate x) * up x) (arXiv 2002.05202).
        biases: Which projections have a bias: any of query, key, value, output and mlp.
        qk_norm: Norm of queries and keys: `none`, over each `head` (ViT-22B, arXiv 2302.05442), over the whole `width`
            (InternViT-6B, arXiv 2312.14238), or over each head once it is `rotated`, without parameters and only in
            layers that rotate (Llama 4; backbones).
        layer_scale: Initial value of a learned scale per channel on the outputs of attention and feed-forward layer
            (arXiv 2103.17239); 0 for none.
        parallel_block: Whether attention and feed-forward layer read the same normed input (ViT-22B).
        inner_norms: Norms before the last matmul of `attention` or `mlp` (sub-LN of EVA-02, arXiv 2303.11331).
        fp8: Layers whose matmuls with weights have FP8 operands, e4m3 forward and e5m2 gradients, scaled per tensor:
            any of `attention` and `mlp`; experts count as `mlp`. Sums are float32, master weights as without.
    """

    name: str = "transformer"
    width: int = 128
    depth: int = 2
    heads: int = 4
    ffn: int = 256
    kv_heads: int = 0
    attention_width: int = 0
    norm: str = "layernorm"
    norms: str = "before"
    norm_offset: bool = False
    score_scale: float = 0.0
    score_softcap: float = 0.0
    attention_sinks: bool = False
    norm_epsilon: float = 1e-6
    norm_bias: bool = True
    activation: str = "gelu_tanh"
    gated: bool = False
    biases: tuple[str, ...] = PROJECTIONS
    qk_norm: str = "none"
    layer_scale: float = 0.0
    parallel_block: bool = False
    inner_norms: tuple[str, ...] = ()
    fp8: tuple[str, ...] = ()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        require_positive(self, "width", "depth", "heads", "ffn")
        require_divides(self, "heads", "attention_width" if self.attention_width else "width")
        if self.kv_heads:
            require_divides(self, "kv_heads", "heads")
        require_one_of(self, "norm", NORMS)
        require_one_of(self, "norms", NORM_PLACES)
        if self.norms != "before" and self.parallel_block:
            raise ValueError(
                f"{type(self).__name__}.parallel_block reads one normed input, so norms must be 'before', "
                f"not {self.norms!r}"
            )
        if self.norm_offset and self.norm != "rmsnorm":
            raise ValueError(f"{type(self).__name__}.norm_offset is of an rmsnorm; norm is {self.norm!r}")
        for field in ("attention_width", "norm_epsilon", "score_scale", "score_softcap"):
            if getattr(self, field) < 0:
                raise ValueError(f"{type(self).__name__}.{field} is {getattr(self, field)}; it must be at least 0")
        require_one_of(self, "activation", ACTIVATIONS)
        require_one_of(self, "qk_norm", QK_NORMS)
        for field, known in (("biases", PROJECTIONS), ("inner_norms", LAYERS), ("fp8", LAYERS)):
            unknown = [name for name in getattr(self, field) if name not in known]
            if unknown:
                raise ValueError(
                    f"{type(self).__name__}.{field} names {', '.join(unknown)}; choose from {', '.join(known)}"
                )

    @property
    def query_width(self) -> int:
        """Width h e of all queries together, and of the output projection's input."""
        return self.attention_width or self.width

    @property
    def head_width(self) -> int:
        """Width e of one attention head."""
        return self.query_width // self.heads

    @property
    def kv_width(self) -> int:
        """Width k e of all keys together, and of all values together."""
        return self.head_width * (self.kv_heads or self.heads)
