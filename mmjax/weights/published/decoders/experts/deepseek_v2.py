"""DeepSeek-V2 (arXiv 2405.04434), `DeepseekV2ForCausalLM`: latent attention and experts with softmax scores."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig, RouterConfig
from mmjax.weights.published.config_values import require_values
from mmjax.weights.published.decoders.experts.deepseek import rules
from mmjax.weights.published.decoders.shared.latent_attention import read_latent_attention, write_latent_attention
from mmjax.weights.published.decoders.shared.llama_like import read_decoder, tied_head_duplicates, write_decoder
from mmjax.weights.published.decoders.shared.routed_experts import ignored_layers, read_experts, write_experts
from mmjax.weights.published.rules import PublishedArchitecture, require_round_trip

DEFAULTS = {
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1407,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 0,
}
"""What transformers assumes where a file leaves it out."""

REQUIRED = {"scoring_func": "softmax", "moe_layer_freq": 1, "norm_topk_prob": False}
"""Keys with the only values that can be computed."""

METHODS = ("greedy", "group_limited_greedy")
"""Values of `topk_method`: experts of any group (V2-Lite), or of the groups with the best experts."""


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' DeepseekV2Config."""
    require_values(values, {**REQUIRED, "mlp_bias": False})
    values = {**DEFAULTS, **values, "head_dim": None}
    method = values.get("topk_method", METHODS[0])
    if method not in METHODS:
        raise ValueError(f"topk_method is {method!r}; only {' and '.join(METHODS)} can be computed")
    groups = {}
    if method != METHODS[0]:
        groups = {"groups": values["n_group"], "top_groups": values["topk_group"], "group_best": 1}
    router = RouterConfig(normalise=False, weight_factor=float(values["routed_scaling_factor"]), **groups)
    return read_decoder(values, (), experts=read_experts(values, router), **read_latent_attention(values))


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' DeepseekV2Config."""
    values = {**write_decoder(config), **write_latent_attention(config), **write_experts(config), **REQUIRED}
    if config.experts and config.experts.router.groups > 1:
        router = config.experts.router
        values |= {"topk_method": METHODS[1], "n_group": router.groups, "topk_group": router.top_groups}
    require_round_trip(config, read_config(values))
    return values


PUBLISHED = (
    PublishedArchitecture(
        name="DeepseekV2ForCausalLM",
        model_types=("deepseek_v2",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored_layers,
        duplicates=tied_head_duplicates,
    ),
)
