"""Decoders of which some blocks have experts and the others a dense feed-forward layer."""

from collections.abc import Iterable
from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.shared.expert_rules import require_experts
from mmjax.weights.published.decoders.shared.llama_like import mlp_rules
from mmjax.weights.published.key_table import Entry, Keys, Values
from mmjax.weights.published.rules import Rule, with_runs


def block_rules(
    config: BackboneConfig,
    everywhere: Iterable[Rule],
    routed: Iterable[Rule],
    dense: Iterable[Rule] | None = None,
) -> tuple[Rule, ...]:
    """Makes the rules of all pieces from the rules of blocks, written as if all blocks were in one stack.

    Args:
        config: The backbone.
        everywhere: Rules of the layers that all blocks have, and of other pieces.
        routed: Rules of experts and their router.
        dense: Rules of feed-forward layers; None for rules with Llama's names.
    """
    runs = config.block_runs()
    dense = mlp_rules(config) if dense is None else dense
    places = {
        has_experts: [(run.name, run.first) for run in runs if run.has_experts == has_experts]
        for has_experts in (True, False)
    }
    return (
        *with_runs(everywhere, "blocks", [(run.name, run.first) for run in runs]),
        *with_runs(routed, "blocks", places[True]),
        *with_runs(dense, "blocks", places[False]),
    )


def _read_sparse_layers(values: Values) -> dict[str, Any]:
    dense = sorted(values.get("mlp_only_layers") or ())
    if dense != list(range(len(dense))):
        raise ValueError(f"mlp_only_layers is {dense}; only the first layers can be without experts")
    return {"experts.dense_layers": len(dense), "experts.interval": values.get("decoder_sparse_step", 1)}


def _write_sparse_layers(config: BackboneConfig) -> dict[str, Any]:
    experts = require_experts(config)
    return {"mlp_only_layers": list(range(experts.dense_layers)), "decoder_sparse_step": experts.interval}


SPARSE_LAYERS: Entry = Keys(_read_sparse_layers, _write_sparse_layers)
"""The entry of Qwen's keys for the layers that have experts."""
