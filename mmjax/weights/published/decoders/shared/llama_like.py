"""Common code of most published decoders: Llama's tensor names, and the keys of its config.json."""

from collections.abc import Callable, Mapping
from typing import Any

from configs.architectures import BackboneConfig, ExpertsConfig, RouterConfig
from mmjax.weights.published.decoders.shared.rope_config import read_rotary_fields, write_rotary
from mmjax.weights.published.key_table import Entry, Key, Keys, Table, Values
from mmjax.weights.published.rules import (
    PublishedArchitecture,
    Rule,
    Rules,
    linear_rules,
    norm_rules,
    require_round_trip,
)
from mmjax.weights.published.table_architecture import table_architecture
from mmjax.weights.published.tensor_layouts import LINEAR

BLOCK = "model.layers.{layer}"
MLP = f"{BLOCK}.mlp"
MLP_MATRICES = (("gate_proj", "gate"), ("up_proj", "up"), ("down_proj", "down"))
NUMBERED_MLP_MATRICES = (("w1", "gate"), ("w3", "up"), ("w2", "down"))
PROJECTIONS = (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))
SILU_NAMES = ("silu", "swish")
_TYPES = {"": BackboneConfig, "experts": ExpertsConfig, "experts.router": RouterConfig}

NORMS_OF_BLOCKS = {
    "before": (("input_layernorm", "attention_norm"), ("post_attention_layernorm", "mlp_norm")),
    "after": (("post_attention_layernorm", "attention_norm"), ("post_feedforward_layernorm", "mlp_norm")),
    "both": (
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "attention_output_norm"),
        ("pre_feedforward_layernorm", "mlp_norm"),
        ("post_feedforward_layernorm", "mlp_output_norm"),
    ),
}
"""Names of a block's norms, with their paths here, by `TransformerConfig.norms`."""

QUERY_KEY_NORMS = (("q_norm", "query_norm"), ("k_norm", "key_norm"))


def decoder_rules(config: BackboneConfig) -> Rules:
    """Rules of a decoder with Llama's names."""
    return {config.name: (*embedding_and_head_rules(config), *attention_rules(config), *mlp_rules(config))}


def embedding_and_head_rules(config: BackboneConfig) -> tuple[Rule, ...]:
    """Rules of the embedding, the norms of blocks and the head."""
    head = () if config.tie_embeddings else (Rule("lm_head.weight", "head/embedding"),)
    return (
        Rule("model.embed_tokens.weight", "embed/embedding"),
        *(
            rule
            for name, path in NORMS_OF_BLOCKS[config.norms]
            for rule in norm_rules(f"{BLOCK}.{name}", f"blocks/{path}", bias=False)
        ),
        *norm_rules("model.norm", "head/norm", bias=False),
        *head,
    )


def attention_rules(config: BackboneConfig) -> tuple[Rule, ...]:
    """Rules of the projections of attention, of the norms of queries and keys, and of the sinks."""
    projections = tuple(
        rule
        for letter, name in PROJECTIONS
        for rule in linear_rules(
            f"{BLOCK}.self_attn.{letter}_proj", f"blocks/attention/{name}", LINEAR, bias=name in config.biases
        )
    )
    sinks = (Rule(f"{BLOCK}.self_attn.sinks", "blocks/attention/sinks"),) if config.attention_sinks else ()
    return (*projections, *query_key_norm_rules(config), *sinks)


def query_key_norm_rules(config: BackboneConfig) -> tuple[Rule, ...]:
    """Rules of the norms of queries and keys, where the backbone has some."""
    if config.qk_norm == "none":
        return ()
    return tuple(
        rule
        for name, path in QUERY_KEY_NORMS
        for rule in norm_rules(f"{BLOCK}.self_attn.{name}", f"blocks/attention/{path}", bias=False)
    )


def mlp_rules(config: BackboneConfig) -> tuple[Rule, ...]:
    """Rules of the feed-forward layer."""
    return gated_mlp_rules(MLP, "blocks/mlp", bias="mlp" in config.biases)


def gated_mlp_rules(
    tensor: str, parameter: str, matrices: tuple[tuple[str, str], ...] = MLP_MATRICES, bias: bool = False
) -> tuple[Rule, ...]:
    """Rules of a gated feed-forward layer, such as a shared expert.

    Args:
        tensor: Prefix before the matrix in the names of tensors.
        parameter: The path that holds the matrices.
        matrices: (name of a matrix in the names of tensors, and here).
        bias: Whether the matrices have biases.
    """
    return tuple(
        rule
        for theirs, ours in matrices
        for rule in linear_rules(f"{tensor}.{theirs}", f"{parameter}/{ours}", LINEAR, bias)
    )


def read_heads(values: Values) -> dict[str, Any]:
    """Reads the number of heads and key-value heads, and their width where it does not follow from the model width."""
    heads = values["num_attention_heads"]
    width = heads * (values.get("head_dim") or values["hidden_size"] // heads)
    return {
        "heads": heads,
        "kv_heads": values.get("num_key_value_heads") or heads,
        "attention_width": 0 if width == values["hidden_size"] else width,
    }


def _write_heads(config: BackboneConfig) -> dict[str, Any]:
    return {"num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads}


def _write_head_width_of_its_own(config: BackboneConfig) -> dict[str, Any]:
    return {"head_dim": config.head_width} if config.attention_width else {}


def _read_silu(values: Values) -> dict[str, Any]:
    if values.get("hidden_act", "silu") not in SILU_NAMES:
        raise ValueError(f"hidden_act is {values['hidden_act']!r}; only 'silu' can be computed")
    return {}


def biases(names: Mapping[str, tuple[str, ...]], default: bool = False) -> Entry:
    """Makes the entry of keys that say which projections have biases.

    Args:
        names: Names of the projections in `BackboneConfig.biases`, by the key.
        default: The value of files that leave a key out.
    """
    return Keys(
        lambda values: {"biases": tuple(name for key in names if values.get(key, default) for name in names[key])},
        lambda config: {key: names[key][0] in config.biases for key in names},
    )


SIZES: Table = (
    Keys(read_heads, _write_head_width_of_its_own),
    Key("vocab_size", "vocabulary"),
    Key("hidden_size", "width"),
    Key("num_hidden_layers", "depth"),
    Keys(write=_write_heads),
    Key("intermediate_size", "ffn"),
)
SILU: Entry = Keys(_read_silu, lambda _: {"hidden_act": "silu"})
ROTARY: Entry = Keys(read_rotary_fields, write_rotary)
TYING_AND_EPSILON: Table = (
    Key("tie_word_embeddings", "tie_embeddings", False, bool),
    Key("rms_norm_eps", "norm_epsilon", 1e-6, float),
)
LLAMA_KEYS: Table = (*SIZES, SILU, ROTARY, *TYING_AND_EPSILON)
"""Entries of most decoders; some decoders replace one of these."""

HEAD_WIDTH: Entry = Keys(write=lambda config: {"head_dim": config.head_width})
"""The width of heads, written also where it follows from the model width."""


def ignored_buffers(config: BackboneConfig) -> tuple[str, ...]:
    """Buffers that old files hold and that are computed here."""
    del config
    return ("*.rotary_emb.inv_freq",)


def tied_head_duplicates(config: BackboneConfig) -> dict[str, str]:
    """The head, which some files hold although it is the embedding."""
    return {"lm_head.weight": "model.embed_tokens.weight"} if config.tie_embeddings else {}


def _require_experts(config: BackboneConfig) -> dict[str, Any]:
    if config.experts is None:
        raise ValueError("experts is None, but every block of the published architecture has experts")
    return {}


def decoder_architecture(
    name: str,
    model_type: str,
    table: Table,
    *,
    as_written: Callable[[BackboneConfig], BackboneConfig] = lambda config: config,
    **others: Any,
) -> PublishedArchitecture:
    """Makes a published decoder, dense or with experts, from the table of its keys.

    Args:
        name: Name of the class that loads it.
        model_type: Its `model_type`.
        table: The keys of its config.json.
        as_written: Replaces fields that config.json does not describe by the values with which it is read.
        **others: Other arguments of `table_architecture`; where they are left out, the tensors have Llama's names.
    """
    has_experts = any(isinstance(entry, Key) and entry.field.startswith("experts.") for entry in table)
    defaults = {"rules": decoder_rules, "ignored": ignored_buffers, "duplicates": tied_head_duplicates}
    return table_architecture(
        name,
        (model_type,),
        _TYPES,
        (Keys(write=_require_experts), *table) if has_experts else table,
        require_same=lambda config, read_back: require_round_trip(as_written(config), read_back),
        **{**defaults, **others},
    )
