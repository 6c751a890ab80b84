"""Small InternViTs, and the authors' names of what transformers names otherwise."""

import numpy as np

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 36,
    "image_size": [16, 16],
    "patch_size": [4, 4],
}
KINDS = {
    "6B": {"norm_type": "rms_norm", "attention_bias": False, "use_qk_norm": True},
    "300M": {"norm_type": "layer_norm", "attention_bias": True, "use_qk_norm": False},
}
NAMES = {
    "embeddings.cls_token": "embeddings.class_embedding",
    "embeddings.patch_embeddings.projection": "embeddings.patch_embedding",
    "embeddings.position_embeddings": "embeddings.position_embedding",
    "encoder.layer.": "encoder.layers.",
    "attention.projection_layer": "attn.proj",
    "attention.": "attn.",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "lambda_": "ls",
}


def of_authors(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """An encoder's weights under the authors' names, queries, keys and values joined."""
    written = {renamed(name, NAMES): tensor for name, tensor in tensors.items()}
    for name in sorted(name for name in written if ".q_proj." in name):
        parts = [written.pop(name.replace(".q_proj.", f".{part}_proj.")) for part in "qkv"]
        written[name.replace(".q_proj.", ".qkv.")] = np.concatenate(parts)
    return written


def renamed(name: str, names: dict[str, str]) -> str:
    """The name with everything replaced that has another name."""
    for theirs, original in names.items():
        name = name.replace(theirs, original)
    return name


def values_of_authors(kind: str) -> dict:
    """What the authors' config.json says of a small encoder."""
    of = KINDS[kind]
    return {
        "model_type": "intern_vit_6b",
        **{key: value[0] if isinstance(value, list) else value for key, value in SMALL.items()},
        "norm_type": of["norm_type"],
        "qkv_bias": of["attention_bias"],
        "qk_normalization": of["use_qk_norm"],
    }
