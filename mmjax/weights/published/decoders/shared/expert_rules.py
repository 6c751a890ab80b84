"""Rules of experts of which each has tensors of its own."""

from configs.architectures import BackboneConfig, ExpertsConfig
from mmjax.weights.published.decoders.shared.llama_like import MLP_MATRICES
from mmjax.weights.published.rules import Rule, expand_numbers
from mmjax.weights.published.tensor_layouts import Stacked


def require_experts(config: BackboneConfig) -> ExpertsConfig:
    """The experts of a backbone; raises ValueError where it has none."""
    if config.experts is None:
        raise ValueError("experts is None, but every block of the published architecture has experts")
    return config.experts


def expert_rules(
    config: BackboneConfig, experts: str, matrices: tuple[tuple[str, str], ...] = MLP_MATRICES
) -> tuple[Rule, ...]:
    """Rules of the experts' matrices, of which every expert has tensors of its own.

    Args:
        config: The backbone.
        experts: What comes before the number of an expert in the names of tensors.
        matrices: (name of a matrix in the names of tensors, and here).
    """
    count = require_experts(config).count
    return tuple(
        Rule(expand_numbers(f"{experts}.{{expert}}.{tensor}.weight", "expert", count), f"blocks/mlp/{name}", Stacked())
        for tensor, name in matrices
    )
