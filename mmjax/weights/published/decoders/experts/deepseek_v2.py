"""DeepSeek-V2 (arXiv 2405.04434), `DeepseekV2ForCausalLM`: latent attention and experts with softmax scores."""

from typing import Any

from configs.architectures import BackboneConfig, RouterConfig
from mmjax.weights.published.decoders.experts.deepseek import rules
from mmjax.weights.published.decoders.shared.latent_attention import LATENT_ATTENTION
from mmjax.weights.published.decoders.shared.llama_like import LLAMA_KEYS, decoder_architecture
from mmjax.weights.published.decoders.shared.routed_experts import ignored_layers, read_experts, write_experts
from mmjax.weights.published.key_table import Fixed, Keys, Values

DEFAULTS = {
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1407,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 0,
}
"""Values that transformers assumes where a file leaves them out."""

REQUIRED = {"scoring_func": "softmax", "moe_layer_freq": 1, "norm_topk_prob": False}
"""Keys with the only values that can be computed."""

METHODS = ("greedy", "group_limited_greedy")
"""Values of `topk_method`: experts of any group (V2-Lite), or of the groups with the best experts."""


def prepare(values: Values) -> Values:
    """Completes a config.json."""
    return {**DEFAULTS, **values, "head_dim": None}


def read_routing(values: Values) -> dict[str, Any]:
    """Reads the experts; raises ValueError for a way to choose them that cannot be computed."""
    method = values.get("topk_method", METHODS[0])
    if method not in METHODS:
        raise ValueError(f"topk_method is {method!r}; only {' and '.join(METHODS)} can be computed")
    groups = {}
    if method != METHODS[0]:
        groups = {"groups": values["n_group"], "top_groups": values["topk_group"], "group_best": 1}
    router = RouterConfig(normalise=False, weight_factor=float(values["routed_scaling_factor"]), **groups)
    return {"experts": read_experts(values, router)}


def write_groups(config: BackboneConfig) -> dict[str, Any]:
    """Writes the keys of experts in groups."""
    if not config.experts or config.experts.router.groups <= 1:
        return {}
    router = config.experts.router
    return {"topk_method": METHODS[1], "n_group": router.groups, "topk_group": router.top_groups}


KEYS = (
    *LLAMA_KEYS,
    LATENT_ATTENTION,
    Keys(read_routing, write_experts),
    *(Fixed(key, value, written=True) for key, value in REQUIRED.items()),
    Fixed("mlp_bias", False),
    Keys(write=write_groups),
)

PUBLISHED = (
    decoder_architecture(
        "DeepseekV2ForCausalLM", "deepseek_v2", KEYS, prepare=prepare, rules=rules, ignored=ignored_layers
    ),
)
