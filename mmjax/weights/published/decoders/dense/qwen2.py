"""Qwen1.5, Qwen2 (arXiv 2407.10671) and Qwen2.5, `Qwen2ForCausalLM`: Llama's blocks with three biases."""

from mmjax.weights.published.decoders.shared.llama_like import LLAMA_KEYS, decoder_architecture
from mmjax.weights.published.key_table import Fields, Unsupported

BIASES = ("query", "key", "value")
FULL_ATTENTION = Unsupported(
    "use_sliding_window", "; only attention to all earlier positions can be computed", written=True
)

PUBLISHED = (
    decoder_architecture("Qwen2ForCausalLM", "qwen2", (*LLAMA_KEYS, FULL_ATTENTION, Fields({"biases": BIASES}))),
)
