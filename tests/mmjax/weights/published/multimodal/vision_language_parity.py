"""Published vision-language models beside a model with one encoder and a backbone: logits of the same prompts."""

import dataclasses
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import ModelConfig
from data.data_config import RowCapacity
from data.packing.global_batch import build_global_batch
from data.packing.rows.packed_rows import pack_samples
from data.samples.image_format import image_item
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.samples.token_layout import lay_out_tokens
from mmjax.models.model import model_modules, run_module, with_tied_parameters
from mmjax.models.structure.module import Module
from mmjax.models.structure.parameters import layer_name, piece_definition
from mmjax.weights.published_checkpoint import open_checkpoint
from sharding.axes import Axes
from sharding.trees import Tree
from tests.mmjax.weights.published.encoders.vision_parity import picture, published_pixels
from tests.mmjax.weights.published.parity import import_parameters, single_threaded_torch


@dataclasses.dataclass(frozen=True)
class Prompt:
    """An image and the tokens about it, of which the last few are what the model should say."""

    seen: np.ndarray
    tokens: list[int]
    targets: range


def prompts(side: int, image: int, places: int, words: Sequence[Sequence[int]]) -> list[Prompt]:
    """A prompt for each of the words, behind a beginning, and `places` tokens `image` of a picture of its own."""
    tokens = [[1, *[image] * places, *each] for each in words]
    return [Prompt(picture(n, side, side), of, range(1 + places, len(of))) for n, of in enumerate(tokens)]


def ours(folder: pathlib.Path) -> tuple[ModelConfig, tuple[Module, ...], Tree]:
    """The folder's model, its modules and its parameters."""
    model = open_checkpoint(folder).config
    modules = model_modules(model)
    return model, modules, import_parameters(folder, model, "model", modules)


def packed(model: ModelConfig, asked: Sequence[Prompt], image: int) -> dict:
    """All prompts in one row, by the data side."""
    patches = 4 * sum(of.seen.shape[0] * of.seen.shape[1] for of in asked) // model.encoders[0].patch ** 2
    form = SampleFormat.for_model(model, {"patches": patches})
    samples = []
    for number, of in enumerate(asked):
        item = image_item(lambda seen=of.seen: seen, of.seen.shape[:2], form.encoder_formats["patches"])
        layout = lay_out_tokens(of.tokens, [], [of.targets], {"patches": image})
        samples.append(SampleMetadata(kind="prompt", layout=layout, sample_format=form, items=[item]).load(number))
    length = sum(len(sample.layout.tokens) for sample in samples)
    rows = pack_samples(samples, 1, RowCapacity(tokens=length, lengths={"patches": patches}, samples=len(asked)), form)
    return jax.tree.map(jnp.asarray, build_global_batch(rows, model, form).arrays)


def published_logits(
    theirs, asked: Sequence[Prompt], mean: tuple[float, ...], deviation: tuple[float, ...]
) -> list[np.ndarray]:
    """float[prompt's tokens, v] of every prompt, each alone."""
    torch = single_threaded_torch()
    found = []
    for of in asked:
        pixels = torch.from_numpy(published_pixels(of.seen, mean, deviation))
        with torch.no_grad():
            found.append(theirs(input_ids=torch.tensor([of.tokens]), pixel_values=pixels).logits[0].numpy())
    return found


def model_logits(modules: Sequence[Module], parameters: Tree, batch: dict) -> np.ndarray:
    """float[row's tokens, v]."""
    encoder, backbone = modules
    embed, blocks, head = backbone.pieces

    @jax.jit
    def run(parameters: Tree, batch: dict) -> jax.Array:
        own, arrays = parameters["backbone"], batch["backbone"]
        seen = run_module(encoder, parameters["vision"], {}, batch["vision"]).activations["backbone"]
        x = piece_definition(embed).apply(own["embed"]["000"], {"vision": seen}, arrays, Axes())
        shared = blocks.shared_inputs(arrays)
        for layer in range(blocks.layers):
            read = blocks.inputs_of_layer(shared, layer)
            x = piece_definition(blocks).apply(own["blocks"][layer_name(layer)], x, read, Axes())
        module = piece_definition(head).bind(with_tied_parameters(own, head, own["head"]["000"]))
        return module.logits(module.norm(x))

    return np.asarray(run(parameters, batch))[0]
