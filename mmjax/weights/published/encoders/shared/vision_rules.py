"""Rules that published vision transformers have in common: embeddings, pre-norm blocks, and the norm after them."""

from collections.abc import Iterator, Mapping

from configs.architectures import VisionConfig
from configs.modules.transformer import TransformerConfig
from mmjax.weights.published.rules import Rule, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import IDENTITY, LINEAR, Fused, PatchConvolution, Reshaped, TensorLayout

QUERY_KEY_VALUE = ("query", "key", "value")

BIASES = {
    "attention/query": "query",
    "attention/key": "key",
    "attention/value": "value",
    "attention/output": "output",
    "mlp/gate": "mlp",
    "mlp/up": "mlp",
    "mlp/down": "mlp",
}
"""Name in `TransformerConfig.biases` of a projection's bias, by the path of the projection in a block."""

LAYER_SCALES = ("attention_scale", "mlp_scale")
"""Paths of the layer scales in a block; the names of their tensors do not end in `.weight`."""

# Names that several encoders have in a block, by the path in a block here.
MLP_NAMES = {"mlp/up": "mlp.fc1", "mlp/down": "mlp.fc2"}
TIMM_NAMES = {"attention_norm": "norm1", "attention/output": "attn.proj", "mlp_norm": "norm2"}
VIT_ATTENTION_NAMES = {
    "attention/query": "attention.attention.query",
    "attention/key": "attention.attention.key",
    "attention/value": "attention.attention.value",
    "attention/output": "attention.output.dense",
}
ATTENTION_NAMES = {
    "attention/query": "attention.q_proj",
    "attention/key": "attention.k_proj",
    "attention/value": "attention.v_proj",
    "attention/output": "attention.o_proj",
}
SELF_ATTENTION_NAMES = {
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/output": "self_attn.out_proj",
}
CLIP_NAMES = {
    "attention_norm": "layer_norm1",
    **SELF_ATTENTION_NAMES,
    "mlp_norm": "layer_norm2",
    **MLP_NAMES,
}


def block_rules(block: str, names: Mapping[str, str], config: TransformerConfig) -> Iterator[Rule]:
    """Rules of a block.

    Args:
        block: Prefix of the names of its tensors.
        names: Names of its tensors, by their path in a block here.
        config: Says which projections and norms have a bias.
    """
    for path, name in names.items():
        if path in BIASES:
            yield from linear_rules(f"{block}.{name}", f"blocks/{path}", LINEAR, bias=BIASES[path] in config.biases)
        elif path in LAYER_SCALES:
            yield Rule(f"{block}.{name}", f"blocks/{path}/scale")
        else:
            yield from norm_rules(f"{block}.{name}", f"blocks/{path}", bias=norm_bias(config))


def norm_bias(config: TransformerConfig) -> bool:
    """Whether the norms of a transformer have a bias."""
    return config.norm == "layernorm" and config.norm_bias


def patch_embedding_rules(tensor: str, config: VisionConfig) -> tuple[Rule, ...]:
    """Rules of the projection of pixels: a convolution in the checkpoint, over frames too where a patch has several."""
    frames = (config.temporal_patch,) if config.temporal_patch > 1 else ()
    layout = PatchConvolution((*frames, config.patch, config.patch))
    return linear_rules(tensor, "embed/pixels", layout, bias=config.patch_bias)


def position_table_rule(tensor: str, config: VisionConfig, leading: tuple[int, ...] = ()) -> Rule:
    """Makes the rule of the position table, in raster order after the class token's position.

    Args:
        tensor: Name of the tensor.
        config: The encoder.
        leading: Leading dimensions of 1 that the tensor has.
    """
    patches = Reshaped((*leading, config.grid**2, config.width))
    if not config.class_token:
        return Rule(tensor, "embed/table/table", patches)
    part_layouts: tuple[TensorLayout, ...] = (Reshaped((*leading, 1, config.width)), patches)
    return Rule(tensor, ("embed/class_position", "embed/table/table"), Fused(len(leading), part_layouts))


def class_token_rule(tensor: str, config: VisionConfig, leading: tuple[int, ...] = ()) -> Rule:
    """Makes the rule of the class token; `leading` are leading dimensions of 1 that the tensor has."""
    return Rule(tensor, "embed/class_token", Reshaped((*leading, config.width)) if leading else IDENTITY)


def register_rules(tensor: str, config: VisionConfig) -> tuple[Rule, ...]:
    """Makes the rule of the registers, `[1, n, d]` in the checkpoint; none if the encoder has none."""
    layout = Reshaped((1, config.registers, config.width))
    return (Rule(tensor, "embed/registers", layout),) if config.registers else ()


def vit_embedding_rules(config: VisionConfig) -> tuple[Rule, ...]:
    """Rules of the embeddings under ViT's names, which DINOv2 and InternViT have too."""
    return (
        *patch_embedding_rules("embeddings.patch_embeddings.projection", config),
        class_token_rule("embeddings.cls_token", config, leading=(1, 1)),
        *register_rules("embeddings.register_tokens", config),
        position_table_rule("embeddings.position_embeddings", config, leading=(1,)),
    )


def final_norm_rules(tensor: str, config: VisionConfig) -> tuple[Rule, ...]:
    """Rules of the norm after the last block; none if the encoder has none."""
    return norm_rules(tensor, "norm/norm", norm_bias(config)) if config.final_norm else ()


def unused_patterns(block: str, config: VisionConfig, final_norm: str = "") -> tuple[str, ...]:
    """Patterns of the tensors of blocks after the last one that is used, and of the norm if it is unused.

    Args:
        block: Prefix of the names of a block's tensors, with `{layer}` for its number.
        config: The encoder.
        final_norm: Name of the norm after the last block; empty where the published encoder has none.
    """
    numbers = range(config.depth, config.depth + config.unused_blocks)
    norm = (f"{final_norm}.*",) if final_norm and not config.final_norm else ()
    return (*norm, *(f"{block.format(layer=number)}.*" for number in numbers))
