"""DeepSeek-V3's experts (arXiv 2412.19437, section 2.1.2), which GLM-4.5 has too: routing in groups with a bias."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig, ExpertsConfig, RouterConfig
from mmjax.weights.published.config_values import require_values
from mmjax.weights.published.decoders.shared.expert_rules import expert_rules
from mmjax.weights.published.decoders.shared.llama_like import MLP, gated_mlp_rules, ignored_buffers
from mmjax.weights.published.key_table import Entry, Keys
from mmjax.weights.published.rules import Rule
from mmjax.weights.published.tensor_layouts import LINEAR

REQUIRED = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}
"""Keys of the authors' files, with the only values that can be computed."""

DIGITS = 12  # decimal places of the weight of the balancing loss, which is divided by the number of chosen experts


def routed_rules(config: BackboneConfig) -> tuple[Rule, ...]:
    """Rules of the router, the experts and the shared expert; none where all layers are dense."""
    if config.experts is None:
        return ()
    has_bias = config.experts.router.selection_bias
    return (
        Rule(f"{MLP}.gate.weight", "blocks/mlp/router", LINEAR),
        *((Rule(f"{MLP}.gate.e_score_correction_bias", "blocks/mlp/selection_bias"),) if has_bias else ()),
        *expert_rules(config, f"{MLP}.experts"),
        *gated_mlp_rules(f"{MLP}.shared_experts", "blocks/mlp/shared"),
    )


def read_routed_experts(values: Mapping[str, Any]) -> ExpertsConfig | None:
    """Reads the experts that a config.json with DeepSeek-V3's keys describes; None where all layers are dense.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    require_values(values, REQUIRED)
    router = RouterConfig(
        scores="sigmoid",
        selection_bias=True,
        groups=values["n_group"],
        top_groups=values["topk_group"],
        normalise=bool(values["norm_topk_prob"]),
        weight_factor=float(values["routed_scaling_factor"]),
    )
    return read_experts(values, router)


def read_experts(values: Mapping[str, Any], router: RouterConfig) -> ExpertsConfig | None:
    """Reads the experts from the keys that all DeepSeeks have, with a router; None where all layers are dense."""
    if values["first_k_dense_replace"] >= values["num_hidden_layers"]:
        return None
    top_k, ffn = values["num_experts_per_tok"], values["moe_intermediate_size"]
    return ExpertsConfig(
        count=values["n_routed_experts"],
        top_k=top_k,
        ffn=ffn,
        router=router,
        shared_ffn=ffn * values["n_shared_experts"],
        shared_gate=False,
        dense_layers=values["first_k_dense_replace"],
        # The authors' loss; transformers has none. mmjax's loss is theirs times the number of experts of a token
        # (`load_balancing_loss`).
        balance_weight=round((values.get("aux_loss_alpha") or 0.0) / top_k, DIGITS),
    )


def write_routed_experts(config: BackboneConfig) -> dict[str, Any]:
    """Writes the keys that `read_routed_experts` reads."""
    if config.experts is None:
        return write_experts(config)
    router = config.experts.router
    groups = {"n_group": router.groups, "topk_group": router.top_groups, "norm_topk_prob": router.normalise}
    return {**write_experts(config), **groups}


def write_experts(config: BackboneConfig) -> dict[str, Any]:
    """Writes the keys that `read_experts` reads, and the factor of the router's weights."""
    experts = config.experts
    if experts is None:
        return {"first_k_dense_replace": config.depth}
    return {
        "first_k_dense_replace": experts.dense_layers,
        "n_routed_experts": experts.count,
        "n_shared_experts": experts.shared_ffn // experts.ffn,
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.ffn,
        "routed_scaling_factor": experts.router.weight_factor,
        "aux_loss_alpha": round(experts.balance_weight * experts.top_k, DIGITS),
    }


ROUTED_EXPERTS: Entry = Keys(lambda values: {"experts": read_routed_experts(values)}, write_routed_experts)
"""The entry of these keys."""


def ignored_layers(config: BackboneConfig) -> tuple[str, ...]:
    """Computed buffers, and the layers that predict further tokens, which come after the others."""
    return (*ignored_buffers(config), f"model.layers.{config.depth}.*")
