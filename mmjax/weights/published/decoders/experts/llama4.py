"""The text models of Llama 4, `Llama4ForCausalLM`: experts with weighted inputs, in all layers or in every n-th.

All experts of a layer are in one tensor for gate and up, one after the other, and one for down.
"""

from collections.abc import Sequence
from typing import Any

from configs.architectures import BackboneConfig, ExpertsConfig, RouterConfig
from configs.modules.block_runs import has_experts_at
from mmjax.weights.published.decoders.shared.expert_rules import read_balance_weight, write_balance_weight
from mmjax.weights.published.decoders.shared.llama4_attention import (
    llama4_attention_rules,
    read_llama4_attention,
    write_llama4_attention,
)
from mmjax.weights.published.decoders.shared.llama_like import (
    BLOCK,
    HEAD_WIDTH,
    LLAMA_KEYS,
    decoder_architecture,
    embedding_and_head_rules,
    gated_mlp_rules,
)
from mmjax.weights.published.decoders.shared.sparse_layers import block_rules
from mmjax.weights.published.key_table import Key, Keys, Values
from mmjax.weights.published.rules import Rule, Rules
from mmjax.weights.published.table_architecture import with_defaults
from mmjax.weights.published.tensor_layouts import IDENTITY, LINEAR, Fused

MLP = f"{BLOCK}.feed_forward"
DEFAULTS = {
    "head_dim": 128,
    "rope_theta": 5e5,
    "rms_norm_eps": 1e-5,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
}
ROUTER = RouterConfig(scores="sigmoid", normalise=False, weighted="inputs")


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone."""
    everywhere = (*embedding_and_head_rules(config), *llama4_attention_rules(config))
    return {config.name: block_rules(config, everywhere, _routed_rules(), gated_mlp_rules(MLP, "blocks/mlp"))}


def _routed_rules() -> tuple[Rule, ...]:
    return (
        Rule(f"{MLP}.router.weight", "blocks/mlp/router", LINEAR),
        Rule(
            f"{MLP}.experts.gate_up_proj",
            ("blocks/mlp/gate", "blocks/mlp/up"),
            Fused(axis=2, part_layout=IDENTITY),
        ),
        Rule(f"{MLP}.experts.down_proj", "blocks/mlp/down"),
        *gated_mlp_rules(f"{MLP}.shared_expert", "blocks/mlp/shared"),
    )


def read_experts(values: Values) -> dict[str, Any]:
    """Reads the experts, if some layers have them.

    Raises:
        ValueError: The layers with experts are not every n-th layer.
    """
    step, depth = values["interleave_moe_layer_step"], values["num_hidden_layers"]
    layers = values.get("moe_layers")
    layers = list(range(step - 1, depth, step)) if layers is None else sorted(layers)
    if not layers:
        return {"experts": None}
    experts = ExpertsConfig(
        count=values["num_local_experts"],
        top_k=values["num_experts_per_tok"],
        ffn=values["intermediate_size"],
        router=ROUTER,
        shared_ffn=values["intermediate_size"],
        shared_gate=False,
        balance_weight=read_balance_weight(values),
        **_places(layers),
    )
    if [layer for layer in range(depth) if has_experts_at(experts, layer)] != layers:
        raise ValueError(
            f"moe_layers is {layers} of {depth}; only one of every few layers can have experts, to the end"
        )
    return {"experts": experts}


def _places(layers: Sequence[int]) -> dict[str, Any]:
    """Returns the fields `dense_layers` and `interval` of ExpertsConfig for these layers with experts."""
    first, *others = layers
    interval = others[0] - first if others else first + 1
    return {"dense_layers": first if first >= interval else 0, "interval": interval}


def write_experts(config: BackboneConfig) -> dict[str, Any]:
    """Writes the keys that `read_experts` reads."""
    layers = {"moe_layers": list(config.layers_with_experts)}
    experts = config.experts
    if experts is None:
        return layers
    return {
        **layers,
        "intermediate_size": experts.ffn,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "interleave_moe_layer_step": experts.interval,
        **write_balance_weight(experts),
    }


KEYS = (
    *LLAMA_KEYS,
    Keys(read_llama4_attention, write_llama4_attention),
    HEAD_WIDTH,
    Key("intermediate_size_mlp", "ffn"),
    Keys(read_experts, write_experts),
)

PUBLISHED = (
    decoder_architecture("Llama4ForCausalLM", "llama4_text", KEYS, prepare=with_defaults(DEFAULTS), rules=rules),
)
