"""Published vision towers beside ours: the same pictures through both, and the way of weights there and back."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import ModelConfig, VisionConfig
from data.data_config import RowCapacity
from data.packing.packed_rows import pack_samples
from data.samples.media_items import image_item
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.samples.token_layout import lay_out_tokens
from data.text.word_tokenizer import IMAGE
from mmjax.models.structure.module import Module
from mmjax.models.structure.parameters import layer_name, piece_definition
from mmjax.weights.export import export_checkpoint, export_target_like
from mmjax.weights.initialization import parameter_initializer
from mmjax.weights.published_checkpoint import as_model, open_checkpoint
from sharding.axes import Axes
from sharding.trees import Tree


@functools.cache
def picture(seed: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def their_pixels(pixels: np.ndarray, mean: tuple[float, ...], deviation: tuple[float, ...]) -> np.ndarray:
    """What a published processor makes of a picture that it need not resize: float32[1, c, height, width]."""
    scaled = (pixels.astype(np.float32) / 255 - np.float32(mean)) / np.float32(deviation)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])


def model_of(config: ModelConfig | VisionConfig) -> ModelConfig:
    return config if isinstance(config, ModelConfig) else as_model(config)


def imported(folder: pathlib.Path, model: ModelConfig, part: str, modules: tuple[Module, ...]) -> Tree:
    """Parameters of these modules, of which the folder gives a part."""
    values = parameter_initializer(model, 0, ((part, str(folder)),))
    return {
        module.name: {
            piece.name: {
                layer_name(layer): values.init_layer(module, piece, layer) for layer in range(piece.layers or 1)
            }
            for piece in module.pieces
        }
        for module in modules
    }


def packed(config: VisionConfig, *pictures: np.ndarray) -> dict[str, np.ndarray]:
    """One row of pictures as the data side packs them: what the encoder reads."""
    form = SampleFormat.for_model(as_model(config), 10**4 * config.positions_per_token)
    items = [image_item(lambda seen=seen: seen, seen.shape[:2], form) for seen in pictures]
    length = sum(item.length for item in items)
    outline = SampleMetadata("seen", lay_out_tokens([1], [], [()], {"patches": IMAGE}), form, items)
    rows = pack_samples([outline.load(0)], 1, RowCapacity(1, length, 0, 1), form)
    values, segments, positions = rows.encoder_inputs["patches"]
    return {"patches": values, "segments": segments, "positions": positions}


def hidden_states(module: Module, parameters: Tree, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """What the encoder gives to its projector."""
    pieces = [piece for piece in module.pieces if piece.name != "projector"]

    @jax.jit
    def run(parameters: Tree, batch: dict[str, jax.Array]) -> jax.Array:
        x: jax.Array | dict = {}
        for piece in pieces:
            shared = piece.shared_inputs(batch) if piece.shared_inputs else batch
            for layer in range(piece.layers or 1):
                x = piece_definition(piece).apply(parameters[piece.name][layer_name(layer)], x, shared, Axes())
        return x

    return np.asarray(run(jax.tree.map(jnp.asarray, parameters), jax.tree.map(jnp.asarray, arrays)))[0]


def raster(states: np.ndarray, arrays: dict[str, np.ndarray], image: int) -> tuple[np.ndarray, np.ndarray]:
    """Of an image of the row: the state of its class token, [0 or 1, d], and of its patches in raster order."""
    own = arrays["segments"][0] == image
    places, states = arrays["positions"][0][own], states[own]
    of_class = places[:, 0] < 0
    order = np.lexsort(places[~of_class].T[::-1])
    return states[of_class], states[~of_class][order]


def exported(folder: pathlib.Path, model: ModelConfig, part: str, parameters: Tree, output: pathlib.Path) -> None:
    """Writes a checkpoint like the folder's from our parameters."""
    target = export_target_like(open_checkpoint(folder), model, part)
    export_checkpoint(target, lambda module, piece, layer: parameters[module][piece][layer], output, 10**9)


@functools.cache
def torch_threads():
    """One thread: the models are small and the cores few."""
    import torch

    torch.set_num_threads(1)
    return torch


def randomised(model):
    """The model with random values everywhere: their start is too even to show a mistake."""
    torch = torch_threads()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    return model.eval()
