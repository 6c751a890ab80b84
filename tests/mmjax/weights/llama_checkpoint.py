"""Checkpoint folders of a small Llama, written without torch: random values under the names of transformers."""

import json
import pathlib

import numpy as np

from configs.architectures import BackboneConfig, ModelConfig
from mmjax.weights import registry
from mmjax.weights.folder import write_checkpoint_folder
from mmjax.weights.published.rules import PublishedArchitecture
from mmjax.weights.published_checkpoint import as_model, checkpoint_matches
from mmjax.weights.safetensors_file import DTYPES, TensorHeader

BACKBONE = BackboneConfig(vocabulary=24, width=16, depth=2, heads=4, kv_heads=2, ffn=24)


def model(backbone: BackboneConfig = BACKBONE) -> ModelConfig:
    """The backbone alone."""
    return as_model(backbone)


def llama() -> PublishedArchitecture:
    return registry.find_architecture("llama")


def random_tensors(backbone: BackboneConfig = BACKBONE, dtype: str = "BF16") -> dict[str, np.ndarray]:
    """Tensors of a checkpoint by their names."""
    random = np.random.default_rng(0)
    return {
        name: random.standard_normal(shape, np.float32).astype(DTYPES[dtype])
        for of in checkpoint_matches(llama(), backbone, model(backbone))
        for name, shape in zip(of.tensor_names, of.tensor_shapes, strict=True)
    }


def write_llama(
    path: pathlib.Path,
    tensors: dict[str, np.ndarray],
    backbone: BackboneConfig = BACKBONE,
    limit: int = 10**9,
    **values,
) -> pathlib.Path:
    """Writes tensors with the backbone's config.json; keywords change that."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    declared = {name: TensorHeader(names[array.dtype], array.shape) for name, array in tensors.items()}
    config = {**registry.write_architecture(llama(), backbone), "torch_dtype": "bfloat16", **values}
    write_checkpoint_folder(path, "model", declared, iter(tensors.items()), limit, {"config.json": json.dumps(config)})
    return path


def bits(array: np.ndarray) -> tuple:
    """What two arrays of the same bits have in common."""
    return array.dtype, array.shape, array.tobytes()
