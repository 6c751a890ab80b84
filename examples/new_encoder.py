"""A kind of encoder of your own, with a data set for it: recordings of sensors, and questions about them.

In the folder of this file (copy it and new_encoder.gin):

    python -m mmjax.train --gin_file=new_encoder.gin
    python -m mmjax.verify --gin_file=new_encoder.gin
    python -m mmjax.generate --workdir=runs/new_encoder --prompt="what happens ?" --item=windows=recording.npy
"""

import dataclasses
import functools
import io
from typing import ClassVar

import numpy as np

from configs.architectures import EncoderConfig
from data.datasets.dataset import LazySamples
from data.errors import BadSampleError
from data.samples.encoder_format import EncoderFormat
from data.samples.sample_metadata import SampleMetadata
from data.samples.token_layout import lay_out_tokens
from data.text.prompt_format import PromptFormat
from data.text.word_tokenizer import ANSWER, BOS, EOS, IMAGE, WordTokenizer
from mmjax import register_encoder
from mmjax.models.layers.linear import Linear
from mmjax.models.layers.positions import sinusoidal_positions_1d
from mmjax.models.modalities.encoder import transformer_encoder_module
from mmjax.models.structure.module import PieceModule
from sharding.specs.encoders import linear_embedding_layer, transformer_encoder_spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class SensorConfig(EncoderConfig):
    """A transformer over windows of a recording; every `merge` windows become one token of the backbone."""

    field: ClassVar[str] = "windows"
    name: str = "sensor"
    sensors: int = 2
    window: int = 8
    merge: int = 2
    positions_per_token = property(lambda self: self.merge)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowFormat(EncoderFormat):
    """Items of the data pipeline for a recording: float32[windows, sensors * window]."""

    config: SensorConfig
    field: ClassVar[str] = SensorConfig.field
    value_width = property(lambda self: self.config.sensors * self.config.window)
    values_per_token = property(lambda self: self.config.merge)

    def media_items(self, media, tiling=None):
        """A recording in a file of NumPy, such as mmjax.generate gets: float[windows, sensors * window]."""
        try:
            values = np.load(io.BytesIO(media.read())).astype(np.float32)
        except (ValueError, EOFError) as error:
            raise BadSampleError(media.where, str(error)) from error
        return [self.item(len(values), lambda: values, media.where)]


class WindowEmbedding(PieceModule):
    """Projects every window to the encoder's width and adds its position in the recording."""

    batch_keys = ("windows", "positions")

    def __init__(self, config):
        """Creates the projection."""
        self.width = config.width
        self.values = Linear(config.sensors * config.window, config.width, bias=True)

    def __call__(self, inputs, batch, axes):
        """Embeds `windows` [r, p, w] at `positions` [r, p] as [r, p, d]."""
        x = self.values(batch["windows"].astype(self.values.kernel[...].dtype), axes)
        return x + sinusoidal_positions_1d(batch["positions"], self.width).astype(x.dtype)


register_encoder(
    SensorConfig,
    specs=lambda config, backbone: transformer_encoder_spec(
        config, backbone, linear_embedding_layer(config, config.sensors * config.window)
    ),
    sample_format=lambda config, capacity: WindowFormat(module=config.name, max_length=capacity, config=config),
    modules=lambda config, model: transformer_encoder_module(config, model, WindowEmbedding),
)


CURVES = {"rises": lambda t: t, "falls": lambda t: 1 - t, "swings": lambda t: np.sin(20 * t), "rests": np.zeros_like}


class Recordings:
    """Recordings of one curve each, with the question "what happens ?", answered by the curve's name."""

    tokenizer = WordTokenizer(("what", "happens", "?", *CURVES))
    evaluated_kinds = ("recording",)
    prompt_format = PromptFormat()

    def __init__(self, split, count=2000):
        """Chooses the numbers of the split's recordings; a recording follows from its number."""
        self.first, self.count = {"train": 0, "test": 10**6}[split], count

    def samples_by_kind(self, sample_format):
        """The samples, laid out for a model."""
        return {"recording": LazySamples(self.count, functools.partial(self.sample, sample_format))}

    def sample(self, sample_format, index):
        """A recording with its question; the recording itself is computed when it is loaded."""
        form, random = sample_format.encoder_of(WindowFormat), np.random.default_rng(self.first + index)
        windows, answer = form.values_per_token * int(random.integers(1, 5)), random.choice(list(CURVES))

        def values():
            curve = CURVES[answer](np.linspace(0, 1, windows * form.value_width))
            return (curve + 0.1 * random.standard_normal(len(curve))).reshape(windows, -1).astype(np.float32)

        item = form.item(windows, values, f"recording {index}")
        question = [BOS, *[IMAGE] * form.token_count(windows), *self.tokenizer.encode("what happens ?"), ANSWER]
        tokens, loss = [*question, *self.tokenizer.encode(answer), EOS], range(len(question), len(question) + 2)
        layout = lay_out_tokens(tokens, [], [loss], {form.field: IMAGE})
        return SampleMetadata(kind="recording", layout=layout, sample_format=sample_format, items=[item])
