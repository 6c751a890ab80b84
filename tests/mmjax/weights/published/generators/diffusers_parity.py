"""Models of diffusers beside the generator: folders that diffusers saves, and folders that it is to load."""

import json

import jax
import numpy as np

from configs.architectures import BackboneConfig, ModelConfig
from mmjax.models.modalities.generators.generator import generator_module
from mmjax.models.structure.parameters import abstract_module_parameters, layer_name, piece_definition
from mmjax.weights import registry
from mmjax.weights.published.rules import match_rules
from sharding.axes import Axes
from sharding.trees import get_leaf, set_leaf

BACKBONE = BackboneConfig(vocabulary=8, width=8, depth=1, heads=2, kv_heads=2, ffn=8)


def model_of(generator):
    """A model with the generator."""
    return ModelConfig((), BACKBONE, (generator,))


def matches_of(published, config):
    """Every rule with the shapes of the generator's parameters."""
    module = generator_module(config, BACKBONE)
    leaves, _ = jax.tree_util.tree_flatten_with_path({module.name: abstract_module_parameters(module)})
    shapes = {"/".join(key.key for key in path): leaf.shape for path, leaf in leaves}
    return match_rules(published.rules(config), shapes)


def read(folder):
    """(architecture, our configuration, our parameters of the module) of a folder that diffusers saved."""
    from safetensors.numpy import load_file

    published, config = registry.read_architecture(json.loads((folder / "config.json").read_text()))
    tensors = load_file(folder / f"{published.file_stem}.safetensors")
    parameters = {}
    for each in matches_of(published, config):
        theirs = tuple(tensors.pop(name) for name in each.tensor_names)
        assert tuple(array.shape for array in theirs) == each.tensor_shapes
        for path, array in zip(
            each.parameter_paths, each.layout.to_parameters(theirs, each.parameter_shapes), strict=True
        ):
            parameters = set_leaf(parameters, path, np.ascontiguousarray(array))
    assert not tensors, f"nothing of ours: {sorted(tensors)}"
    return published, config, parameters[config.name]


def write(folder, published, config, parameters):
    """The inverse of `read`."""
    from safetensors.numpy import save_file

    tree, tensors = {config.name: parameters}, {}
    for each in matches_of(published, config):
        ours = tuple(get_leaf(tree, path) for path in each.parameter_paths)
        tensors |= zip(each.tensor_names, map(np.ascontiguousarray, each.layout.to_published(ours)), strict=True)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(registry.write_architecture(published, config)))
    save_file(tensors, folder / f"{published.file_stem}.safetensors", metadata={"format": "pt"})


def module_of(config, parameters, name):
    """The Flax module of a piece, with its parameters."""
    piece = next(piece for piece in generator_module(config, BACKBONE).pieces if piece.name == name)
    return piece_definition(piece).bind(parameters[name][layer_name(0)])


def predict(config, parameters, maps, time, conditions):
    """The U-Net's prediction as a NumPy array."""
    compute = jax.jit(lambda own, *arguments: module_of(config, own, "unet").unet(*arguments, Axes()))
    return np.asarray(compute(parameters, maps, time, conditions))
