"""OLMo 2 (arXiv 2501.00656), `Olmo2ForCausalLM`: norms after the layers, and of all queries and all keys."""

from mmjax.weights.published.decoders.shared.llama_like import LLAMA_KEYS, biases, decoder_architecture
from mmjax.weights.published.key_table import Fields
from mmjax.weights.published.table_architecture import with_defaults

BIASES = biases({"attention_bias": ("query", "key", "value", "output")})
NORMS = Fields({"norms": "after", "qk_norm": "width"})

PUBLISHED = (
    decoder_architecture(
        "Olmo2ForCausalLM",
        "olmo2",
        (*LLAMA_KEYS, BIASES, NORMS),
        prepare=with_defaults({"rms_norm_eps": 1e-5}),
    ),
)
