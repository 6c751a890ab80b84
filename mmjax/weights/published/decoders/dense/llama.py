"""Llama (arXiv 2302.13971, 2407.21783) and Yi (2403.04652), which has its architecture: `LlamaForCausalLM`."""

from mmjax.weights.published.decoders.shared.llama_like import HEAD_WIDTH, LLAMA_KEYS, biases, decoder_architecture

BIASES = {"attention_bias": ("query", "key", "value", "output"), "mlp_bias": ("mlp",)}

PUBLISHED = (decoder_architecture("LlamaForCausalLM", "llama", (*LLAMA_KEYS, HEAD_WIDTH, biases(BIASES))),)
