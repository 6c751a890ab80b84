"""What most published decoders share: Llama's tensor names, and the keys of its config.json."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import BackboneConfig
from mmjax.weights.published.decoders.shared.rope_config import read_rotary, write_rotary
from mmjax.weights.published.rules import Rule, Rules, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import LINEAR

BLOCK = "model.layers.{layer}"
MLP = f"{BLOCK}.mlp"
MLP_MATRICES = (("gate_proj", "gate"), ("up_proj", "up"), ("down_proj", "down"))
NUMBERED_MLP_MATRICES = (("w1", "gate"), ("w3", "up"), ("w2", "down"))
PROJECTIONS = (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))
SILU = ("silu", "swish")

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
"""By `TransformerConfig.norms`: names of a block's norms, and their paths here."""

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
        tensor: What comes before the matrix in the names of tensors.
        parameter: The path that holds the matrices.
        matrices: (name of a matrix in the names of tensors, and here).
        bias: Whether the matrices have biases.
    """
    return tuple(
        rule
        for theirs, ours in matrices
        for rule in linear_rules(f"{tensor}.{theirs}", f"{parameter}/{ours}", LINEAR, bias)
    )


def read_decoder(values: Mapping[str, Any], biases: tuple[str, ...], **fields: Any) -> BackboneConfig:
    """The configuration that a config.json with Llama's keys describes.

    Args:
        values: Contents of config.json.
        biases: Projections that have a bias.
        **fields: Fields of the configuration that Llama's keys do not describe.

    Raises:
        ValueError: A key has a value that cannot be computed.
    """
    heads = values["num_attention_heads"]
    attention_width = heads * (values.get("head_dim") or values["hidden_size"] // heads)
    if "activation" not in fields and values.get("hidden_act", "silu") not in SILU:
        raise ValueError(f"hidden_act is {values['hidden_act']!r}; only 'silu' can be computed")
    base, scaling = read_rotary(values)
    return BackboneConfig(
        vocabulary=values["vocab_size"],
        width=values["hidden_size"],
        depth=values["num_hidden_layers"],
        heads=heads,
        kv_heads=values.get("num_key_value_heads") or heads,
        attention_width=0 if attention_width == values["hidden_size"] else attention_width,
        ffn=values["intermediate_size"],
        biases=biases,
        rope_base=base,
        rope_scaling=scaling,
        tie_embeddings=bool(values.get("tie_word_embeddings", False)),
        norm_epsilon=float(values.get("rms_norm_eps", 1e-6)),
        **fields,
    )


def write_decoder(config: BackboneConfig) -> dict[str, Any]:
    """The keys that `read_decoder` reads."""
    head_width = {"head_dim": config.head_width} if config.attention_width else {}
    return {
        **head_width,
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.ffn,
        "hidden_act": "silu",
        **write_rotary(config),
        "tie_word_embeddings": config.tie_embeddings,
        "rms_norm_eps": config.norm_epsilon,
    }


def ignored_buffers(config: BackboneConfig) -> tuple[str, ...]:
    """Buffers that old files hold and that are computed here."""
    del config
    return ("*.rotary_emb.inv_freq",)


def tied_head_duplicates(config: BackboneConfig) -> dict[str, str]:
    """The head, which some files hold although it is the embedding."""
    return {"lm_head.weight": "model.embed_tokens.weight"} if config.tie_embeddings else {}
