"""The decoder of Qwen3-VL-MoE: Qwen3-MoE's, with all experts of a layer in two tensors.

transformers stores the matrices of experts as `[outputs, inputs]`, and the authors' files have them as
`[inputs, outputs]`: the shapes tell which, so that each is an architecture of its own.
"""

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.experts.qwen3_moe import KEYS
from mmjax.weights.published.decoders.shared.llama_like import (
    MLP,
    attention_rules,
    decoder_architecture,
    embedding_and_head_rules,
)
from mmjax.weights.published.key_table import Values
from mmjax.weights.published.rules import Rule, Rules
from mmjax.weights.published.tensor_layouts import IDENTITY, LINEAR, Fused, TensorLayout, Transposed

ROPE_BASE = 500000.0
GATE_AND_UP = ("blocks/mlp/gate", "blocks/mlp/up")
EXPERTS = f"{MLP}.experts"


def prepare(values: Values) -> Values:
    """Completes transformers' Qwen3VLMoeTextConfig; the weights of a token's experts always add up to 1."""
    if values.get("mlp_only_layers") or values.get("decoder_sparse_step", 1) != 1:
        raise ValueError(
            f"mlp_only_layers is {values.get('mlp_only_layers')!r} and decoder_sparse_step "
            f"{values.get('decoder_sparse_step', 1)!r}; only experts in every block can be computed"
        )
    head = {"head_dim": values["hidden_size"] // values["num_attention_heads"]}
    return {"rope_theta": ROPE_BASE, **head, **values, "norm_topk_prob": True}


def _rules(config: BackboneConfig, gate_and_up: TensorLayout, down: TensorLayout) -> Rules:
    router = Rule(f"{MLP}.gate.weight", "blocks/mlp/router", LINEAR)
    experts = (
        Rule(f"{EXPERTS}.gate_up_proj", GATE_AND_UP, gate_and_up),
        Rule(f"{EXPERTS}.down_proj", "blocks/mlp/down", down),
    )
    return {config.name: (*embedding_and_head_rules(config), *attention_rules(config), router, *experts)}


def rules(config: BackboneConfig) -> Rules:
    """Rules with matrices `[outputs, inputs]`."""
    transposed = Transposed((0, 2, 1))
    return _rules(config, Fused(axis=1, part_layout=transposed), transposed)


def rules_of_authors(config: BackboneConfig) -> Rules:
    """Rules with matrices `[inputs, outputs]`."""
    return _rules(config, Fused(axis=2, part_layout=IDENTITY), IDENTITY)


TEXT, TEXT_OF_AUTHORS = (
    decoder_architecture("Qwen3VLMoeTextModel", "qwen3_vl_moe_text", KEYS, prepare=prepare, rules=rules_of_files)
    for rules_of_files in (rules, rules_of_authors)
)
