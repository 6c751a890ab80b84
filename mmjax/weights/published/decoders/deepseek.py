"""DeepSeek-V3 (arXiv 2412.19437), `DeepseekV3ForCausalLM`: latent attention, and experts behind the first layers.

The bias by which experts are chosen is trained there by their loads; here it stays as it is (`RouterConfig`).
"""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig, ExpertsConfig, RouterConfig
from mmjax.weights.published.decoders.latent_attention import (
    latent_attention_rules,
    read_latent_attention,
    write_latent_attention,
)
from mmjax.weights.published.decoders.llama_like import (
    BLOCK,
    embedding_and_head_rules,
    ignored_buffers,
    read_decoder,
    tied_head_duplicates,
    write_decoder,
)
from mmjax.weights.published.decoders.mixtral import expert_rules
from mmjax.weights.published.decoders.sparse_layers import block_rules
from mmjax.weights.published.rules import (
    PublishedArchitecture,
    Rule,
    Rules,
    linear_rules,
    require_round_trip,
)
from mmjax.weights.published.tensor_layouts import LINEAR

MLP = f"{BLOCK}.mlp"
MATRICES = ("gate", "up", "down")
DEFAULTS = {
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "first_k_dense_replace": 3,
    "aux_loss_alpha": 0.0001,
}
"""What transformers assumes where a file leaves it out, and the weight of the balancing loss in the paper."""

REQUIRED = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}
"""Keys of the authors' files, with the only values that can be computed."""

DIGITS = 12  # of the balancing loss, whose weight is divided by the number of chosen experts


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone."""
    everywhere = (*embedding_and_head_rules(config), *latent_attention_rules(config))
    return {config.name: block_rules(config, everywhere, routed_rules(config) if config.experts else ())}


def routed_rules(config: BackboneConfig) -> tuple[Rule, ...]:
    """Rules of the router, the experts, and the one that every token passes through."""
    return (
        Rule(f"{MLP}.gate.weight", "blocks/mlp/router", LINEAR),
        Rule(f"{MLP}.gate.e_score_correction_bias", "blocks/mlp/selection_bias"),
        *expert_rules(config, tuple((f"{MLP}.experts.{{expert}}.{name}_proj", name) for name in MATRICES)),
        *(
            rule
            for name in MATRICES
            for rule in linear_rules(
                f"{MLP}.shared_experts.{name}_proj", f"blocks/mlp/shared/{name}", LINEAR, bias=False
            )
        ),
    )


def read_config(values: Mapping[str, Any]) -> BackboneConfig:
    """Reads transformers' DeepseekV3Config; keys that a file leaves out are as in DeepSeek-V3."""
    for key, required in REQUIRED.items():
        if values.get(key, required) != required:
            raise ValueError(f"{key} is {values[key]!r}; only {required!r} can be computed")
    values = {**DEFAULTS, **values}
    experts = _read_experts(values) if values["first_k_dense_replace"] < values["num_hidden_layers"] else None
    return read_decoder({**values, "head_dim": None}, (), experts=experts, **read_latent_attention(values))


def _read_experts(values: Mapping[str, Any]) -> ExpertsConfig:
    top_k, ffn = values["num_experts_per_tok"], values["moe_intermediate_size"]
    return ExpertsConfig(
        count=values["n_routed_experts"],
        top_k=top_k,
        ffn=ffn,
        router=RouterConfig(
            scores="sigmoid",
            selection_bias=True,
            groups=values["n_group"],
            top_groups=values["topk_group"],
            normalise=bool(values["norm_topk_prob"]),
            weight_factor=float(values["routed_scaling_factor"]),
        ),
        shared_ffn=ffn * values["n_shared_experts"],
        shared_gate=False,
        dense_layers=values["first_k_dense_replace"],
        # The loss here is as many times theirs as a token has experts (`load_balancing_loss`).
        balance_weight=round(values["aux_loss_alpha"] / top_k, DIGITS),
    )


def write_config(config: BackboneConfig) -> dict[str, Any]:
    """Writes transformers' DeepseekV3Config."""
    values = {
        **write_decoder(config),
        **write_latent_attention(config),
        "first_k_dense_replace": config.experts.dense_layers if config.experts else config.depth,
        **(_write_experts(config.experts) if config.experts else {}),
    }
    require_round_trip(config, read_config(values))
    return values


def _write_experts(experts: ExpertsConfig) -> dict[str, Any]:
    router = experts.router
    return {
        "n_routed_experts": experts.count,
        "n_shared_experts": experts.shared_ffn // experts.ffn,
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.ffn,
        "n_group": router.groups,
        "topk_group": router.top_groups,
        "routed_scaling_factor": router.weight_factor,
        "norm_topk_prob": router.normalise,
        "aux_loss_alpha": round(experts.balance_weight * experts.top_k, DIGITS),
    }


def ignored(config: BackboneConfig) -> tuple[str, ...]:
    """Computed buffers, and the layers that predict further tokens, which come after the others."""
    return (*ignored_buffers(config), f"model.layers.{config.depth}.*")


PUBLISHED = (
    PublishedArchitecture(
        name="DeepseekV3ForCausalLM",
        model_types=("deepseek_v3",),
        config_type=BackboneConfig,
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        ignored=ignored,
        duplicates=tied_head_duplicates,
    ),
)
