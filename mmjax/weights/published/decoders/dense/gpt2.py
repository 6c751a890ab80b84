"""GPT-2, and GPT-3's blocks (arXiv 2005.14165), `GPT2LMHeadModel`: learned positions, LayerNorm, GELU."""

from configs.architectures import BackboneConfig
from configs.modules.transformer import PROJECTIONS
from mmjax.weights.published.activations import activation_key
from mmjax.weights.published.decoders.shared.llama_like import decoder_architecture
from mmjax.weights.published.key_table import Fields, Fixed, Key, Keys
from mmjax.weights.published.rules import Rule, Rules, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import IDENTITY, Fused

BLOCK = "transformer.h.{layer}"
QUERY_KEY_VALUE = ("query", "key", "value")
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu"}


def rules(config: BackboneConfig) -> Rules:
    """Rules of the backbone; GPT-2's Conv1D is `[inputs, outputs]` like kernels here."""
    attention = f"{BLOCK}.attn.c_attn"
    backbone = (
        Rule("transformer.wte.weight", "embed/embedding"),
        Rule("transformer.wpe.weight", "embed/positions"),
        Rule(f"{attention}.weight", _query_key_value("kernel"), Fused(axis=1, part_layout=IDENTITY)),
        Rule(f"{attention}.bias", _query_key_value("bias"), Fused(axis=0, part_layout=IDENTITY)),
        *linear_rules(f"{BLOCK}.attn.c_proj", "blocks/attention/output", IDENTITY, bias=True),
        *linear_rules(f"{BLOCK}.mlp.c_fc", "blocks/mlp/up", IDENTITY, bias=True),
        *linear_rules(f"{BLOCK}.mlp.c_proj", "blocks/mlp/down", IDENTITY, bias=True),
        *norm_rules(f"{BLOCK}.ln_1", "blocks/attention_norm", bias=True),
        *norm_rules(f"{BLOCK}.ln_2", "blocks/mlp_norm", bias=True),
        *norm_rules("transformer.ln_f", "head/norm", bias=True),
        *(() if config.tie_embeddings else (Rule("lm_head.weight", "head/embedding"),)),
    )
    return {config.name: backbone}


def _query_key_value(parameter: str) -> tuple[str, ...]:
    return tuple(f"blocks/attention/{name}/{parameter}" for name in QUERY_KEY_VALUE)


KEYS = (
    Fixed("scale_attn_by_inverse_layer_idx", False),
    Fixed("add_cross_attention", False),
    Fixed("scale_attn_weights", True),
    Key("vocab_size", "vocabulary"),
    Key("n_embd", "width"),
    Key("n_layer", "depth"),
    Key("n_head", "heads"),
    Keys(lambda values: {"kv_heads": values["n_head"]}),
    Keys(lambda values: {"ffn": values.get("n_inner") or 4 * values["n_embd"]}, lambda config: {"n_inner": config.ffn}),
    Key("n_positions", "max_positions"),
    Key("layer_norm_epsilon", "norm_epsilon", 1e-5, float),
    activation_key("activation_function", ACTIVATIONS, default="gelu_new"),
    Key("tie_word_embeddings", "tie_embeddings", True, bool),
    Fields({"norm": "layernorm", "gated": False, "biases": PROJECTIONS, "positions": "learned"}),
)


def ignored(config: BackboneConfig) -> tuple[str, ...]:
    """Causal masks, which old files hold."""
    del config
    return ("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias")


def duplicates(config: BackboneConfig) -> dict[str, str]:
    """The head, which some files hold although it is the embedding."""
    return {"lm_head.weight": "transformer.wte.weight"} if config.tie_embeddings else {}


PUBLISHED = (
    decoder_architecture(
        "GPT2LMHeadModel",
        "gpt2",
        KEYS,
        rules=rules,
        ignored=ignored,
        duplicates=duplicates,
        aliases=tuple((f"{name}.", f"transformer.{name}.") for name in ("h", "wte", "wpe", "ln_f")),
    ),
)
