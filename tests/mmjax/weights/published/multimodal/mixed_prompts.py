"""Prompts with pictures, clips and sounds: what the data side makes of them, and what transformers' models read."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import ModelConfig
from data.data_config import RowCapacity
from data.packing.global_batch import build_global_batch
from data.packing.rows.packed_rows import pack_samples
from data.samples.encoder_format import MediaItem
from data.samples.image_format import PatchFormat, frame_inputs
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.samples.token_layout import lay_out_tokens
from mmjax.generation.kv_cache import CachedBackbone
from mmjax.models.structure.module import Module
from mmjax.models.structure.parameters import layer_name, piece_definition
from sharding.trees import Tree

SECONDS = 0.25
"""Time between frames of a clip."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixedPrompt:
    """Tokens and what they show.

    Attributes:
        tokens: Token ids.
        clips: Pictures and clips in order, uint8[frames, height, width, 3]; of one frame for a picture.
        sounds: float32[frames, mels] of each.
    """

    tokens: list[int]
    clips: Sequence[np.ndarray] = ()
    sounds: Sequence[np.ndarray] = ()


def clip_items(clip: np.ndarray, form: PatchFormat) -> Iterator[MediaItem]:
    """The items of a clip, each of the frames of a temporal patch."""
    frames, height, width, _ = clip.shape
    grid = (height // form.cell_size, width // form.cell_size)
    for group, first in enumerate(range(0, frames, form.temporal_patch)):
        own = clip[first : first + form.temporal_patch]
        times = tuple(SECONDS * (first + number) for number in range(len(own))) if frames > 1 else ()
        length = form.values_per_token * grid[0] * grid[1]

        def load(own: np.ndarray = own):
            return frame_inputs(list(own), form)

        yield MediaItem("patches", length, load, "clip", times=times, group=group, grid=grid)


def one_row(model: ModelConfig, prompt: MixedPrompt, placeholders: Mapping[str, int | Sequence[int]]) -> dict:
    """The arrays of a row that the prompt fills."""
    form = SampleFormat.for_model(model, dict.fromkeys(placeholders, 10**4 * 3))
    items = []
    for encoder in form.encoders:
        if isinstance(encoder, PatchFormat):
            items += [item for clip in prompt.clips for item in clip_items(clip, encoder)]
        else:
            items += [encoder.item(len(sound), lambda sound=sound: sound, "sound") for sound in prompt.sounds]
    layout = lay_out_tokens(prompt.tokens, [], [range(len(prompt.tokens) - 1, len(prompt.tokens))], placeholders)
    sample = SampleMetadata(kind="prompt", layout=layout, sample_format=form, items=items).load(0)
    lengths = {field: len(inputs.values) for field, inputs in sample.encoder_inputs.items()}
    rows = pack_samples([sample], 1, RowCapacity(tokens=len(prompt.tokens), lengths=lengths, samples=1), form)
    return jax.tree.map(jnp.asarray, build_global_batch(rows, model, form).arrays)


def published_patches(model: ModelConfig, arrays: dict) -> np.ndarray:
    """float32[patches, c * t * h * w], normalised, as Qwen's processors give them."""
    encoder = model.encoders[0]
    patches = np.asarray(arrays[encoder.name]["patches"][0])
    shape = (-1, encoder.temporal_patch, encoder.patch, encoder.patch, encoder.channels)
    normalised = (patches.reshape(shape) - np.float32(encoder.pixel_mean)) / np.float32(encoder.pixel_std)
    return np.ascontiguousarray(normalised.transpose(0, 4, 1, 2, 3)).reshape(len(patches), -1)


def published_grid(model: ModelConfig, clip: np.ndarray) -> list[int]:
    """Groups of frames, rows and columns of the patches of a clip."""
    encoder, (frames, height, width, _) = model.encoders[0], clip.shape
    return [-(-frames // encoder.temporal_patch), height // encoder.patch, width // encoder.patch]


def prefill_logits(model: ModelConfig, modules: tuple[Module, ...], parameters: Tree, arrays: dict) -> np.ndarray:
    """float[tokens, v] of a row, by prefill, which runs the encoders and all blocks."""
    parameters = jax.tree.map(jnp.asarray, parameters)
    backbone = CachedBackbone(model, modules)
    length = arrays[model.backbone.name]["tokens"].shape[1]
    _, hidden = jax.jit(backbone.prefill)(parameters, arrays, jnp.array([length]))
    (head,) = (piece for piece in modules[-1].pieces if piece.name == "head")
    own = parameters[model.backbone.name]["head"][layer_name(0)]
    return np.asarray(piece_definition(head).bind(own).logits(hidden))[0]
