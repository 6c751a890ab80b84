"""Mistral (arXiv 2310.06825), `MistralForCausalLM`: Llama's blocks, in some models with attention to a window."""

from mmjax.weights.published.decoders.shared.attention_types import uniform_attention
from mmjax.weights.published.decoders.shared.llama_like import LLAMA_KEYS, decoder_architecture

PUBLISHED = (decoder_architecture("MistralForCausalLM", "mistral", (*LLAMA_KEYS, uniform_attention("Mistral"))),)
