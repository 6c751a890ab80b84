"""What tests beside published models share: random torch models, and weights imported and exported."""

import functools
import pathlib
from typing import Any

import numpy as np

from configs.architectures import ModelConfig
from mmjax.models.structure.module import Module
from mmjax.models.structure.parameters import layer_name
from mmjax.weights.export import export_checkpoint, export_target_like
from mmjax.weights.initialization import parameter_initializer
from mmjax.weights.published.rules import match_rules
from mmjax.weights.published_checkpoint import as_model, is_ignored_tensor, open_checkpoint, parameter_shapes
from mmjax.weights.registry import find_architecture
from sharding.trees import Tree


@functools.cache
def single_threaded_torch() -> Any:
    """The torch module with one thread: the models are small and the cores few."""
    import torch

    torch.set_num_threads(1)
    return torch


def randomise_weights(model: Any, scale: float = 0.2) -> Any:
    """Fills a torch model with normal values, and returns it: initial values are too uniform to show a mistake."""
    torch = single_threaded_torch()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * scale)
    return model.eval()


def sinusoids(positions: int, width: int) -> np.ndarray:
    """Whisper's position table, float64[positions, width], which models keep and mmjax computes."""
    angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(width // 2) / (width // 2 - 1))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def import_parameters(folder: pathlib.Path, model: ModelConfig, part: str, modules: tuple[Module, ...]) -> Tree:
    """Parameters of some modules of a model, `{module: {piece: {layer: {...}}}}`; the folder gives one part of it."""
    initializer = parameter_initializer(model, 0, ((part, str(folder)),))
    return {
        module.name: {
            piece.name: {
                layer_name(layer): initializer.init_layer(module, piece, layer) for layer in range(piece.layers or 1)
            }
            for piece in module.pieces
        }
        for module in modules
    }


def export_parameters(folder: pathlib.Path, model: ModelConfig, part: str, parameters: Tree, output: pathlib.Path):
    """Writes a checkpoint like the folder's from the parameters of a part of a model."""
    target = export_target_like(open_checkpoint(folder), model, part)
    export_checkpoint(target, lambda module, piece, layer: parameters[module][piece][layer], output, 10**9)


def same_tensors(first: pathlib.Path, second: pathlib.Path) -> bool:
    """Whether two folders hold the same tensors, bit by bit."""
    folders = [open_checkpoint(path).folder for path in (first, second)]
    contents = [
        {name: (folder.tensors[name].dtype, folder.read(name).tobytes()) for name in folder.tensors}
        for folder in folders
    ]
    return contents[0] == contents[1]


def assert_close(values: np.ndarray, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    """Fails where values differ by more than a share of the largest expected value, or where all expected are alike."""
    assert np.std(expected) > 0.1
    np.testing.assert_allclose(values, expected, atol=tolerance * np.abs(expected).max())


def assert_names_and_shapes(theirs: Any, part: str) -> None:
    """Fails where the rules of a torch model's own configuration name other tensors than it has, or of other shapes.

    Args:
        theirs: The model; on the device `meta` it may be of any size.
        part: Name of the module that it is.
    """
    published = find_architecture(theirs.config.model_type)
    config = published.read_config(theirs.config.to_dict())
    shapes = parameter_shapes(as_model(config))
    own_shapes = {path: shape for path, shape in shapes.items() if path.startswith(f"{part}/")}
    found: dict[str, tuple[int, ...]] = {}
    for match in match_rules(published.rules(config), own_shapes):
        found |= zip(match.tensor_names, match.tensor_shapes, strict=True)
    tensors = {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}
    copies = published.duplicates(config)
    assert found == {
        name: shape
        for name, shape in tensors.items()
        if name not in copies and not is_ignored_tensor(published, config, name)
    }
