"""Name rules of experts where every expert has tensors of its own, and entries of their keys."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig, ExpertsConfig
from mmjax.weights.published.decoders.shared.llama_like import MLP_MATRICES
from mmjax.weights.published.key_table import Entry, Keys
from mmjax.weights.published.rules import Rule, expand_numbers
from mmjax.weights.published.tensor_layouts import Stacked

DEFAULT_COEFFICIENT = 0.001
"""Weight of the load-balancing loss in files without one."""


def require_experts(config: BackboneConfig) -> ExpertsConfig:
    """Returns the experts of a backbone; raises ValueError where it has none."""
    if config.experts is None:
        raise ValueError("experts is None, but every block of the published architecture has experts")
    return config.experts


def expert_rules(
    config: BackboneConfig, experts: str, matrices: tuple[tuple[str, str], ...] = MLP_MATRICES
) -> tuple[Rule, ...]:
    """Makes rules of the experts' matrices, where every expert has tensors of its own.

    Args:
        config: The backbone.
        experts: Prefix before the number of an expert in the names of tensors.
        matrices: (name of a matrix in the names of tensors, and here).
    """
    count = require_experts(config).count
    return tuple(
        Rule(expand_numbers(f"{experts}.{{expert}}.{tensor}.weight", "expert", count), f"blocks/mlp/{name}", Stacked())
        for tensor, name in matrices
    )


def read_balance_weight(values: Mapping[str, Any]) -> float:
    """Reads the weight of the load-balancing loss, which transformers adds only with `output_router_logits`."""
    return float(values.get("router_aux_loss_coef", DEFAULT_COEFFICIENT)) if values.get("output_router_logits") else 0.0


def write_balance_weight(experts: ExpertsConfig) -> dict[str, Any]:
    """Writes the keys that `read_balance_weight` reads."""
    weight = experts.balance_weight
    return {"router_aux_loss_coef": weight or DEFAULT_COEFFICIENT, "output_router_logits": weight > 0}


def with_width_of_experts(config: BackboneConfig) -> BackboneConfig:
    """Returns the backbone as a config.json with one width for dense layers and experts describes it."""
    return dataclasses.replace(config, ffn=require_experts(config).ffn)


BALANCE: Entry = Keys(
    lambda values: {"experts.balance_weight": read_balance_weight(values)},
    lambda config: write_balance_weight(config.experts),
)
"""The entry of the keys of the load-balancing loss."""
