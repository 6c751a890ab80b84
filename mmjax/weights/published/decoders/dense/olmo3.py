"""OLMo 3 (arXiv 2512.13961), `Olmo3ForCausalLM`: OLMo 2's blocks, three of four with attention to a window.

Only global layers have scaled rotary positions.
"""

from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.dense.olmo2 import BIASES, NORMS
from mmjax.weights.published.decoders.shared.attention_types import read_attention_types, write_attention_types
from mmjax.weights.published.decoders.shared.llama_like import (
    SILU,
    SIZES,
    TYING_AND_EPSILON,
    decoder_architecture,
)
from mmjax.weights.published.decoders.shared.rope_config import (
    read_local_base,
    read_local_rotary,
    read_rotary_fields,
    write_rotary,
)
from mmjax.weights.published.key_table import Keys, Values
from mmjax.weights.published.table_architecture import with_defaults

THREE_LOCAL = ("sliding_attention",) * 3 + ("full_attention",)
DEFAULTS = {"rms_norm_eps": 1e-5, "rope_theta": 5e5, "sliding_window": 4096}


def read_attention(values: Values) -> dict[str, Any]:
    """Reads kinds of layers and rotary positions; files before transformers 5 scale them for global layers alone."""
    values, local = read_local_rotary(values)
    found, kinds = read_rotary_fields(values), read_attention_types(values, THREE_LOCAL)
    if kinds:
        kinds["local_rope_base"] = read_local_base(values, local or {"rope_theta": found["rope_base"]})
    return {**found, **kinds}


def write_attention(config: BackboneConfig) -> dict[str, Any]:
    """Writes the keys that `read_attention` reads, with separate rotary positions for each kind of layer."""
    written = write_rotary(config)
    rotary = {"rope_theta": written["rope_theta"], **written.get("rope_scaling", {"rope_type": "default"})}
    local = {"rope_type": "default", "rope_theta": config.local_rope_base} if config.local_rope_base else rotary
    apart = {"full_attention": rotary, "sliding_attention": local}
    return {**write_attention_types(config), "rope_parameters": apart}


PUBLISHED = (
    decoder_architecture(
        "Olmo3ForCausalLM",
        "olmo3",
        (*SIZES, SILU, *TYING_AND_EPSILON, Keys(read_attention, write_attention), BIASES, NORMS),
        prepare=with_defaults(DEFAULTS),
    ),
)
