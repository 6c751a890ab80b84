"""Published decoders beside the backbone: logits of the same tokens, and weights imported and exported."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import BackboneConfig
from mmjax.models.model import model_modules, with_tied_parameters
from mmjax.models.structure.module import LayerOutput, Module
from mmjax.models.structure.parameters import layer_name, piece_definition
from mmjax.weights.published_checkpoint import as_model, open_checkpoint
from sharding.axes import Axes
from sharding.trees import Tree
from tests.mmjax.weights.published.parity import export_parameters, import_parameters

TOKENS = np.random.default_rng(1).integers(0, 24, (2, 12))


def read_backbone_config(folder: pathlib.Path) -> BackboneConfig:
    """The configuration that the folder's config.json describes."""
    return open_checkpoint(folder).config


def backbone_module(config: BackboneConfig) -> Module:
    """The backbone as a module."""
    return model_modules(as_model(config))[-1]


def import_backbone(folder: pathlib.Path) -> Tree:
    """The folder's weights as parameters of the backbone, `{piece: {layer: {...}}}`."""
    config = read_backbone_config(folder)
    return import_parameters(folder, as_model(config), config.name, (backbone_module(config),))[config.name]


def backbone_logits(
    folder: pathlib.Path, tokens: np.ndarray = TOKENS, config: BackboneConfig | None = None
) -> np.ndarray:
    """Logits of every position, in rows that are one segment each; by default of the folder's configuration."""
    config, parameters = config or read_backbone_config(folder), import_backbone(folder)
    embed, *stacks, head = backbone_module(config).pieces
    ones = jnp.ones(tokens.shape, jnp.int32)
    batch = {
        "tokens": jnp.asarray(tokens, jnp.int32),
        "segments": ones,
        "branches": 0 * ones,
        "positions": jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape),
        "balancing_weights": jnp.zeros(tokens.shape),
    }
    head_parameters = with_tied_parameters(parameters, head, parameters["head"]["000"])

    @jax.jit
    def run(parameters: Tree, head_parameters: Tree) -> jax.Array:
        x = piece_definition(embed).apply(parameters["embed"]["000"], {}, batch, Axes())
        for stack in stacks:
            shared = stack.shared_inputs(batch)
            for layer in range(stack.layers):
                own = stack.inputs_of_layer(shared, layer)
                x = piece_definition(stack).apply(parameters[stack.name][layer_name(layer)], x, own, Axes())
                x = x.x if isinstance(x, LayerOutput) else x
        module = piece_definition(head).bind(head_parameters)
        return module.logits(module.norm(x))

    return np.asarray(run(parameters, head_parameters))


def export_backbone(folder: pathlib.Path, output: pathlib.Path) -> pathlib.Path:
    """Writes a checkpoint like the folder's from the imported parameters, and returns its path."""
    config = read_backbone_config(folder)
    export_parameters(folder, as_model(config), config.name, {config.name: import_backbone(folder)}, output)
    return output
