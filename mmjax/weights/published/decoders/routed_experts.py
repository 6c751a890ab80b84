"""DeepSeek-V3's experts (arXiv 2412.19437, section 2.1.2), which GLM-4.5 has too: routing in groups with a bias.

The bias by which experts are chosen is trained there by their loads; here it stays as it is (`RouterConfig`).
"""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig, ExpertsConfig, RouterConfig
from mmjax.weights.published.decoders.llama_like import BLOCK, ignored_buffers
from mmjax.weights.published.decoders.mixtral import expert_rules
from mmjax.weights.published.rules import Rule, linear_rules
from mmjax.weights.published.tensor_layouts import LINEAR

MLP = f"{BLOCK}.mlp"
MATRICES = ("gate", "up", "down")
AUXILIARY_WEIGHT = 0.0001
"""Weight of the balancing loss in the paper; transformers has none."""

REQUIRED = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}
"""Keys of the authors' files, with the only values that can be computed."""

DIGITS = 12  # of the balancing loss, whose weight is divided by the number of chosen experts


def routed_rules(config: BackboneConfig) -> tuple[Rule, ...]:
    """Rules of the router, the experts, and the one of all tokens; none where all layers are dense."""
    if config.experts is None:
        return ()
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


def read_routed_experts(values: Mapping[str, Any]) -> ExpertsConfig | None:
    """The experts that a config.json with DeepSeek-V3's keys describes; None where all layers are dense.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    for key, required in REQUIRED.items():
        if values.get(key, required) != required:
            raise ValueError(f"{key} is {values[key]!r}; only {required!r} can be computed")
    if values["first_k_dense_replace"] >= values["num_hidden_layers"]:
        return None
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
        balance_weight=round(values.get("aux_loss_alpha", AUXILIARY_WEIGHT) / top_k, DIGITS),
    )


def write_routed_experts(config: BackboneConfig) -> dict[str, Any]:
    """The keys that `read_routed_experts` reads."""
    experts = config.experts
    if experts is None:
        return {"first_k_dense_replace": config.depth}
    router = experts.router
    return {
        "first_k_dense_replace": experts.dense_layers,
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


def ignored_layers(config: BackboneConfig) -> tuple[str, ...]:
    """Computed buffers, and the layers that predict further tokens, which come after the others."""
    return (*ignored_buffers(config), f"model.layers.{config.depth}.*")
