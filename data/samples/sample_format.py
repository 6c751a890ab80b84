"""Sample formats: the encoder inputs and target images that a model and its row capacities require.

A data set builds its samples for such a format, and a global batch has the arrays that it names.
"""

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

from configs.architectures import ModelConfig
from data.errors import DataError
from data.samples import audio_format  # noqa: F401  (importing it registers the format of its encoder)
from data.samples.encoder_format import EncoderFormat, encoder_format, require_positive_fields
from data.samples.image_format import PatchFormat
from data.samples.token_format import TokenFormat

_Format = TypeVar("_Format", bound=EncoderFormat)


@dataclasses.dataclass(frozen=True)
class TargetImageFormat:
    """Targets of a generator.

    Attributes:
        module: Name of the generator.
        size: Side z of an image in pixels.
        conditions: Number q of backbone positions that condition one image.
    """

    module: str = "generator"
    size: int = 32
    conditions: int = 4

    def __post_init__(self) -> None:
        require_positive_fields(self)


@dataclasses.dataclass(frozen=True)
class SampleFormat:
    """Formats of encoder inputs, target images and tokens that a model and its row capacities require.

    Attributes:
        encoders: Inputs of every encoder.
        target_images: Targets of the generator; None without one.
        tokens: Requirements of the backbone on tokens.
    """

    encoders: tuple[EncoderFormat, ...] = (PatchFormat(),)
    target_images: TargetImageFormat | None = TargetImageFormat()
    tokens: TokenFormat = TokenFormat()

    @classmethod
    def for_model(cls, model: ModelConfig, capacities: Mapping[str, int]) -> "SampleFormat":
        """The format for a model.

        Args:
            model: The model.
            capacities: By field, the row capacity of an encoder's inputs (`DataConfig.encoder_capacities`).

        Raises:
            DataError: The model has two encoders of one field, an encoder of whose inputs a row holds none, two
                generators, or images that are not RGB or whose targets are not square.
        """
        fields = [encoder.field for encoder in model.encoders]
        for modules in (
            *([encoder for encoder in model.encoders if encoder.field == field] for field in dict.fromkeys(fields)),
            model.generators,
        ):
            if len(modules) > 1:
                names = " and ".join(module.name for module in modules)
                raise DataError(f"the data pipeline feeds one module of each modality; the model has {names}")
        target_images = None
        for generator in model.generators:
            if generator.channels != 3:
                raise DataError(
                    f"{generator.name}.channels is {generator.channels}; images are read as RGB, so it must be 3"
                )
            if not isinstance(generator.image_size, int):
                raise DataError(
                    f"{generator.name}.image_size is {generator.image_size}; target images are square: give one side"
                )
            target_images = TargetImageFormat(generator.name, generator.image_size, generator.conditions)
        for encoder in model.encoders:
            if encoder.field not in capacities:
                raise DataError(
                    f"{encoder.name} reads {encoder.field}, for which a row has no capacity; set "
                    f"DataConfig.capacities = (({encoder.field!r}, ...),)"
                )
        encoders = tuple(encoder_format(encoder, capacities[encoder.field]) for encoder in model.encoders)
        return cls(encoders, target_images, TokenFormat.for_backbone(model.backbone))

    @property
    def encoder_formats(self) -> dict[str, EncoderFormat]:
        """The formats of the encoders' inputs, by field."""
        return {encoder.field: encoder for encoder in self.encoders}

    def encoder_of(self, kind: type[_Format]) -> _Format | None:
        """The format of a kind, such as `PatchFormat`; None for a model without such an encoder."""
        return next((encoder for encoder in self.encoders if isinstance(encoder, kind)), None)
