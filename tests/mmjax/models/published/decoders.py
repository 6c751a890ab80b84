"""Published decoders beside ours: the same tokens through both, and the way of weights there and back."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import BackboneConfig
from mmjax.models.interface import Passing
from mmjax.models.module import Module
from mmjax.models.parameters import define, layer_name
from mmjax.models.pieces import model_modules
from mmjax.models.whole import with_borrowed
from mmjax.weights.exporting import export, like
from mmjax.weights.initial import InitialValues, initial_values
from mmjax.weights.modules import open_checkpoint, standing_alone
from sharding.axes import Axes
from sharding.trees import Tree

TOKENS = np.random.default_rng(1).integers(0, 24, (2, 12))


def config_of(folder: pathlib.Path) -> BackboneConfig:
    """What the folder's config.json describes."""
    return open_checkpoint(folder).config


def backbone_of(config: BackboneConfig) -> Module:
    return model_modules(standing_alone(config))[-1]


def imported(folder: pathlib.Path) -> Tree:
    """The folder's weights as our parameters."""
    config = config_of(folder)
    values: InitialValues = initial_values(standing_alone(config), 0, ((config.name, str(folder)),))
    return {
        piece.name: {
            layer_name(layer): values.layer(backbone_of(config), piece, layer) for layer in range(piece.layers or 1)
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
    of_head = with_borrowed(parameters, head, parameters["head"]["000"])

    @jax.jit
    def run(parameters: Tree, of_head: Tree) -> jax.Array:
        x = define(embed).call(parameters["embed"]["000"], {}, batch, Axes())
        shared = blocks.prepare(batch)
        for layer in range(blocks.layers):
            x = define(blocks).call(parameters["blocks"][layer_name(layer)], x, shared, Axes())
            x = x.x if isinstance(x, Passing) else x
        module = define(head).module(of_head)
        return module.logits(module.norm(x))

    return np.asarray(run(parameters, of_head))


def exported(folder: pathlib.Path, output: pathlib.Path) -> pathlib.Path:
    """A checkpoint like the folder's, written from our parameters."""
    config, parameters = config_of(folder), imported(folder)
    target = like(open_checkpoint(folder), standing_alone(config), config.name)
    export(target, lambda module, piece, layer: parameters[piece][layer], output, 10**9)
    return output


def same_tensors(one: pathlib.Path, other: pathlib.Path) -> bool:
    """Whether two folders hold the same tensors, bit by bit."""
    here, there = (open_checkpoint(path).folder for path in (one, other))
    held = ({name: (of.tensors[name].dtype, of.read(name).tobytes()) for name in of.tensors} for of in (here, there))
    return next(held) == next(held)
