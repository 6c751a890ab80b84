"""InternLM2 (arXiv 2403.17297): Llama under other names, with queries, keys and values in one tensor."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.shared.llama_like import (
    BLOCK,
    NUMBERED_MLP_MATRICES,
    gated_mlp_rules,
    read_decoder,
    write_decoder,
)
from mmjax.weights.published.rules import (
    PublishedArchitecture,
    Rule,
    Rules,
    linear_rules,
    norm_rules,
    require_round_trip,
)
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


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads InternLM2Config.

    Its dynamic scaling of rotary positions changes only sequences longer than those trained on, and is left out.

    Raises:
        ValueError: It has biases.
    """
    if values.get("bias"):
        raise ValueError("bias is true; InternLM2's published weights have none, and none can be read")
    scaling = values.get("rope_scaling") or {}
    is_dynamic = scaling.get("type", scaling.get("rope_type")) == "dynamic"
    return read_decoder({**values, **({"rope_scaling": None} if is_dynamic else {})}, ())


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes InternLM2Config."""
    if config.attention_width:
        raise ValueError(f"attention_width is {config.attention_width}; InternLM2's heads are as wide as the model")
    values = {**write_decoder(config), "bias": False}
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="InternLM2ForCausalLM",
        model_types=("internlm2",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
    ),
)
