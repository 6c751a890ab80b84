"""Checkpoint folders of zeros, made of a config.json alone."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mmjax.weights.folder import write_checkpoint_folder
from mmjax.weights.published_checkpoint import PublishedCheckpoint, as_model, checkpoint_matches, open_checkpoint
from mmjax.weights.registry import read_architecture
from mmjax.weights.safetensors_file import TensorHeader


def write_zeros(path: pathlib.Path, config_json: Mapping[str, Any]) -> PublishedCheckpoint:
    """Writes a checkpoint with this config.json, and opens it."""
    architecture, config = read_architecture(config_json)
    matches = checkpoint_matches(architecture, config, as_model(config))
    shapes = {name: of for match in matches for name, of in zip(match.tensor_names, match.tensor_shapes, strict=True)}
    arrays = ((name, np.zeros(shape, np.float32)) for name, shape in shapes.items())
    headers = {name: TensorHeader("F32", shape) for name, shape in shapes.items()}
    write_checkpoint_folder(path, "model", headers, arrays, 10**9, {"config.json": json.dumps(config_json)})
    return open_checkpoint(path)
