"""Published vision towers beside the vision encoder: hidden states of the same images."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import VisionConfig
from data.data_config import RowCapacity
from data.packing.rows.packed_rows import pack_samples
from data.samples.image_format import image_item
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.samples.token_layout import lay_out_tokens
from data.text.word_tokenizer import IMAGE
from mmjax.models.structure.module import Module
from mmjax.models.structure.parameters import layer_name, piece_definition
from mmjax.weights.published_checkpoint import as_model
from sharding.axes import Axes
from sharding.trees import Tree


@functools.cache
def picture(seed: int, height: int, width: int) -> np.ndarray:
    """Random pixels, uint8[height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def published_pixels(pixels: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]) -> np.ndarray:
    """The output of a published processor for an image that it need not resize: float32[1, c, height, width]."""
    scaled = (pixels.astype(np.float32) / 255 - np.float32(mean)) / np.float32(std)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])


def packed(config: VisionConfig, *pictures: np.ndarray) -> dict[str, np.ndarray]:
    """One row of pictures as the data side packs them: what the encoder reads."""
    form = SampleFormat.for_model(as_model(config), {"patches": 10**4 * config.positions_per_token})
    items = [image_item(lambda seen=seen: seen, seen.shape[:2], form.encoder_formats["patches"]) for seen in pictures]
    length = sum(item.length for item in items)
    outline = SampleMetadata(
        kind="seen", layout=lay_out_tokens([1], [], [()], {"patches": IMAGE}), sample_format=form, items=items
    )
    rows = pack_samples([outline.load(0)], 1, RowCapacity(tokens=1, lengths={"patches": length}, samples=1), form)
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
                own = piece.inputs_of_layer(shared, layer)
                x = piece_definition(piece).apply(parameters[piece.name][layer_name(layer)], x, own, Axes())
        return x

    return np.asarray(run(jax.tree.map(jnp.asarray, parameters), jax.tree.map(jnp.asarray, arrays)))[0]


def raster(states: np.ndarray, arrays: dict[str, np.ndarray], image: int) -> tuple[np.ndarray, np.ndarray]:
    """Of an image of the row: the state of its class token, [0 or 1, d], and of its patches in raster order."""
    own = arrays["segments"][0] == image
    places, states = arrays["positions"][0][own], states[own]
    of_class = places[:, 0] < 0
    order = np.lexsort(places[~of_class].T[::-1])
    return states[of_class], states[~of_class][order]
