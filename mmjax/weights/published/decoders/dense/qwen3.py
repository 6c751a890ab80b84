"""Qwen3 (arXiv 2505.09388), `Qwen3ForCausalLM`: Llama's blocks with norms of queries and keys over each head.

Names of tensors: `decoder_rules` in `shared/llama_like.py`, as of all decoders like Llama.
"""

from mmjax.weights.published.decoders.dense.qwen2 import FULL_ATTENTION
from mmjax.weights.published.decoders.shared.llama_like import (
    HEAD_WIDTH,
    LLAMA_KEYS,
    biases,
    decoder_architecture,
)
from mmjax.weights.published.key_table import Fields
from mmjax.weights.published.table_architecture import with_defaults

QWEN3_KEYS = (
    *LLAMA_KEYS,
    HEAD_WIDTH,
    biases({"attention_bias": ("query", "key", "value", "output")}),
    FULL_ATTENTION,
    Fields({"qk_norm": "head"}),
)
"""Keys of Qwen3's decoders, dense and with experts."""

DEFAULTS = {"head_dim": 128}

PUBLISHED = (decoder_architecture("Qwen3ForCausalLM", "qwen3", QWEN3_KEYS, prepare=with_defaults(DEFAULTS)),)
