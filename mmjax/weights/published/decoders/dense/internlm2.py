"""InternLM2 (arXiv 2403.17297): Llama under other names, with queries, keys and values in one tensor."""

from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.shared.llama_like import (
    BLOCK,
    LLAMA_KEYS,
    NUMBERED_MLP_MATRICES,
    decoder_architecture,
    gated_mlp_rules,
)
from mmjax.weights.published.key_table import Keys, Unsupported, Values
from mmjax.weights.published.rules import Rule, Rules, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import LINEAR, Fused

QUERY_KEY_VALUE = tuple(f"blocks/attention/{name}/kernel" for name in ("query", "key", "value"))


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone. A group of `wqkv` holds the queries that share a key, that key, and its value."""
    head = () if config.tie_embeddings else (Rule("output.weight", "head/embedding"),)
    backbone = (
        Rule("model.tok_embeddings.weight", "embed/embedding"),
        Rule(f"{BLOCK}.attention.wqkv.weight", QUERY_KEY_VALUE, Fused(groups=config.kv_heads)),
        *linear_rules(f"{BLOCK}.attention.wo", "blocks/attention/output", LINEAR, bias=False),
        *gated_mlp_rules(f"{BLOCK}.feed_forward", "blocks/mlp", NUMBERED_MLP_MATRICES),
        *norm_rules(f"{BLOCK}.attention_norm", "blocks/attention_norm", bias=False),
        *norm_rules(f"{BLOCK}.ffn_norm", "blocks/mlp_norm", bias=False),
        *norm_rules("model.norm", "head/norm", bias=False),
        *head,
    )
    return {config.name: backbone}


def without_dynamic_scaling(values: Values) -> Values:
    """Leaves out the dynamic scaling of rotary positions: it changes only sequences longer than in training."""
    scaling = values.get("rope_scaling") or {}
    is_dynamic = scaling.get("type", scaling.get("rope_type")) == "dynamic"
    return {**values, **({"rope_scaling": None} if is_dynamic else {})}


def _require_usual_heads(config: BackboneConfig) -> dict[str, Any]:
    if config.attention_width:
        raise ValueError(f"attention_width is {config.attention_width}; InternLM2's heads are as wide as the model")
    return {}


PUBLISHED = (
    decoder_architecture(
        "InternLM2ForCausalLM",
        "internlm2",
        (
            *LLAMA_KEYS,
            Keys(write=_require_usual_heads),
            Unsupported("bias", "; InternLM2's published weights have none, and none can be read", written=True),
        ),
        prepare=without_dynamic_scaling,
        rules=rules,
        ignored=lambda _: (),
        duplicates=lambda _: {},
    ),
)
