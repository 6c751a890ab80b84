"""Published decoders beside ours: the same tokens through both, and the way of weights there and back."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import BackboneConfig
from mmjax.models.model import model_modules, with_tied_parameters
from mmjax.models.structure.module import LayerOutput, Module
from mmjax.models.structure.parameters import layer_name, piece_definition
from mmjax.weights.export import export_checkpoint, export_target_like
from mmjax.weights.initialization import ParameterInitializer, parameter_initializer
from mmjax.weights.published_checkpoint import as_model, open_checkpoint
from sharding.axes import Axes
from sharding.trees import Tree

TOKENS = np.random.default_rng(1).integers(0, 24, (2, 12))


def config_of(folder: pathlib.Path) -> BackboneConfig:
    """What the folder's config.json describes."""
    return open_checkpoint(folder).config


def backbone_of(config: BackboneConfig) -> Module:
    return model_modules(as_model(config))[-1]


def imported(folder: pathlib.Path) -> Tree:
    """The folder's weights as our parameters."""
    config = config_of(folder)
    values: ParameterInitializer = parameter_initializer(as_model(config), 0, ((config.name, str(folder)),))
    return {
        piece.name: {
            layer_name(layer): values.init_layer(backbone_of(config), piece, layer)
            for layer in range(piece.layers or 1)
        }
        for piece in backbone_of(config).pieces
    }


def logits_of(folder: pathlib.Path, tokens: np.ndarray = TOKENS) -> np.ndarray:
    """Of every position, in rows that are one segment each."""
    config, parameters = config_of(folder), imported(folder)
    embed, blocks, head = backbone_of(config).pieces
    ones = jnp.ones(tokens.shape, jnp.int32)
    batch = {
        "tokens": jnp.asarray(tokens, jnp.int32),
        "segments": ones,
        "branches": 0 * ones,
        "positions": jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape),
        "shares": jnp.zeros(tokens.shape),
    }
    of_head = with_tied_parameters(parameters, head, parameters["head"]["000"])

    @jax.jit
    def run(parameters: Tree, of_head: Tree) -> jax.Array:
        x = piece_definition(embed).apply(parameters["embed"]["000"], {}, batch, Axes())
        shared = blocks.shared_inputs(batch)
        for layer in range(blocks.layers):
            x = piece_definition(blocks).apply(parameters["blocks"][layer_name(layer)], x, shared, Axes())
            x = x.x if isinstance(x, LayerOutput) else x
        module = piece_definition(head).bind(of_head)
        return module.logits(module.norm(x))

    return np.asarray(run(parameters, of_head))


def exported(folder: pathlib.Path, output: pathlib.Path) -> pathlib.Path:
    """A checkpoint like the folder's, written from our parameters."""
    config, parameters = config_of(folder), imported(folder)
    target = export_target_like(open_checkpoint(folder), as_model(config), config.name)
    export_checkpoint(target, lambda module, piece, layer: parameters[piece][layer], output, 10**9)
    return output


def same_tensors(one: pathlib.Path, other: pathlib.Path) -> bool:
    """Whether two folders hold the same tensors, bit by bit."""
    here, there = (open_checkpoint(path).folder for path in (one, other))
    held = ({name: (of.tensors[name].dtype, of.read(name).tobytes()) for name in of.tensors} for of in (here, there))
    return next(held) == next(held)
