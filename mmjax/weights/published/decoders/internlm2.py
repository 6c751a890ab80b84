"""InternLM2 (arXiv 2403.17297): Llama under other names, its queries, keys and values in one tensor."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.llama_like import read_decoder, write_decoder
from mmjax.weights.published.round_trip import require_round_trip
from mmjax.weights.published.rules import PublishedArchitecture, Rule, Rules, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import LINEAR, Fused

BLOCK = "model.layers.{layer}"
FED = (("w1", "gate"), ("w3", "up"), ("w2", "down"))
QUERY_KEY_VALUE = tuple(f"blocks/attention/{name}/kernel" for name in ("query", "key", "value"))


def rules(config: BackboneConfig) -> Rules:
    """The backbone's; a group of `wqkv` is the queries that share a key, that key and its value."""
    fed = (
        linear_rules(f"{BLOCK}.feed_forward.{theirs}", f"blocks/mlp/{ours}", LINEAR, bias=False) for theirs, ours in FED
    )
    head = () if config.tie_embeddings else (Rule("output.weight", "head/embedding"),)
    found = (
        Rule("model.tok_embeddings.weight", "embed/embedding"),
        Rule(f"{BLOCK}.attention.wqkv.weight", QUERY_KEY_VALUE, Fused(groups=config.kv_heads)),
        *linear_rules(f"{BLOCK}.attention.wo", "blocks/attention/output", LINEAR, bias=False),
        *(rule for each in fed for rule in each),
        *norm_rules(f"{BLOCK}.attention_norm", "blocks/attention_norm", bias=False),
        *norm_rules(f"{BLOCK}.ffn_norm", "blocks/mlp_norm", bias=False),
        *norm_rules("model.norm", "head/norm", bias=False),
        *head,
    )
    return {config.name: found}


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Of InternLM2Config. Its dynamic scaling leaves sequences alone that are no longer than those trained on.

    Raises:
        ValueError: It has biases.
    """
    if values.get("bias"):
        raise ValueError("bias is true; InternLM2's published weights have none, and none can be read")
    scaling = values.get("rope_scaling") or {}
    dynamic = scaling.get("type", scaling.get("rope_type")) == "dynamic"
    return read_decoder({**values, **({"rope_scaling": None} if dynamic else {})}, ())


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """For InternLM2Config."""
    values = {**write_decoder(config), "bias": False}
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture("InternLM2ForCausalLM", ("internlm2",), BackboneConfig, read_config, write_config, rules),
)
