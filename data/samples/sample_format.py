"""Sample formats: the encoder inputs and target images that a model and its row capacities require."""

import dataclasses
from typing import Any, ClassVar

from configs.architectures import AudioConfig, ModelConfig, VisionConfig
from data.errors import DataError


def _require_positive(sample_format: Any) -> None:
    for field in dataclasses.fields(sample_format):
        value = getattr(sample_format, field.name)
        if field.type is int and value < 1:
            raise DataError(f"{type(sample_format).__name__}.{field.name} is {value}; it must be at least 1")


@dataclasses.dataclass(frozen=True)
class PatchFormat:
    """Inputs of a vision encoder: flattened patches, of which a cell of merge x merge becomes one backbone token.

    A class token occupies a whole cell before the patches of its image, so that cells stay aligned: the first value
    of that cell is the token's, at position (-1, -1), and the others belong to no image.

    Attributes:
        module: Name of the encoder.
        patch: Side of a patch in pixels.
        merge: Side of a cell in patches.
        max_length: Most patches of a sample, with the cells of class tokens; larger images are scaled down.
        class_token: Whether a class token precedes the patches of every image.
    """

    module: str = "vision"
    patch: int = 8
    merge: int = 2
    max_length: int = 128
    class_token: bool = False

    field: ClassVar[str] = "patches"
    values_per_position: ClassVar[int] = 1
    position_shape: ClassVar[tuple[int, ...]] = (2,)

    def __post_init__(self) -> None:
        _require_positive(self)
        if self.max_length % self.values_per_token:
            raise DataError(
                f"a row of {self.max_length} patches must be a multiple of merge² = {self.values_per_token}; change it"
            )
        if not self.token_count(self.max_length):
            raise DataError(f"a row of {self.max_length} patches holds a class token and no image; raise it")

    @property
    def values_per_token(self) -> int:
        """Patches that become one backbone token."""
        return self.merge * self.merge

    @property
    def prefix_length(self) -> int:
        """Values before the patches of an image: those of the class token's cell."""
        return self.values_per_token * self.class_token

    def token_count(self, length: int) -> int:
        """Number of backbone tokens of an image with `length` values, prefix included."""
        return (length - self.prefix_length) // self.values_per_token

    def attended_positions(self, length: int) -> int:
        """Number of positions that attend to each other in an image with `length` values, prefix included."""
        return length - self.prefix_length + self.class_token

    @property
    def value_width(self) -> int:
        """Numbers in a flattened patch."""
        return self.patch * self.patch * 3

    @property
    def cell_size(self) -> int:
        """Side of a cell in pixels."""
        return self.patch * self.merge


@dataclasses.dataclass(frozen=True)
class FrameFormat:
    """Inputs of an audio encoder: mel frames, two of which become a position and `merge` positions one token.

    Attributes:
        module: Name of the encoder.
        mels: Mel bands of a frame.
        merge: Positions that become one backbone token.
        max_length: Most frames of a sample.
    """

    module: str = "audio"
    mels: int = 80
    merge: int = 2
    max_length: int = 3000

    field: ClassVar[str] = "frames"
    values_per_position: ClassVar[int] = 2
    position_shape: ClassVar[tuple[int, ...]] = ()
    prefix_length: ClassVar[int] = 0

    def __post_init__(self) -> None:
        _require_positive(self)
        if self.max_length % self.values_per_token:
            raise DataError(
                f"a row of {self.max_length} frames must be a multiple of 2 * merge = {self.values_per_token}; "
                "change it"
            )

    @property
    def values_per_token(self) -> int:
        """Frames that become one backbone token."""
        return self.values_per_position * self.merge

    def token_count(self, length: int) -> int:
        """Number of backbone tokens of a clip of `length` frames."""
        return length // self.values_per_token

    def attended_positions(self, length: int) -> int:
        """Number of positions that attend to each other in a clip of `length` frames."""
        return length // self.values_per_position

    @property
    def value_width(self) -> int:
        """Numbers in a frame."""
        return self.mels


EncoderFormat = PatchFormat | FrameFormat


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
        _require_positive(self)


@dataclasses.dataclass(frozen=True)
class SampleFormat:
    """What a model and its row capacities require of every sample.

    Attributes:
        patches: Inputs of the vision encoder; None without one.
        frames: Inputs of the audio encoder; None without one.
        target_images: Targets of the generator; None without one.
    """

    patches: PatchFormat | None = PatchFormat()
    frames: FrameFormat | None = None
    target_images: TargetImageFormat | None = TargetImageFormat()

    @classmethod
    def for_model(cls, model: ModelConfig, patches: int, frames: int = 0) -> "SampleFormat":
        """The format for a model.

        Args:
            model: The model.
            patches: Row capacity of patches.
            frames: Row capacity of mel frames.

        Raises:
            DataError: The model has two encoders of one modality, two generators, or images that are not RGB or whose
                targets are not square.
        """
        vision = [encoder for encoder in model.encoders if isinstance(encoder, VisionConfig)]
        audio = [encoder for encoder in model.encoders if isinstance(encoder, AudioConfig)]
        for modules in (vision, audio, model.generators):
            if len(modules) > 1:
                names = " and ".join(module.name for module in modules)
                raise DataError(f"the data pipeline feeds one module of each modality; the model has {names}")
        for module in (*vision, *model.generators):
            if module.channels != 3:
                raise DataError(f"{module.name}.channels is {module.channels}; images are read as RGB, so it must be 3")
        target_images = None
        for generator in model.generators:
            if not isinstance(generator.image_size, int):
                raise DataError(
                    f"{generator.name}.image_size is {generator.image_size}; target images are square: give one side"
                )
            target_images = TargetImageFormat(generator.name, generator.image_size, generator.conditions)
        return cls(
            patches=PatchFormat(vision[0].name, vision[0].patch, vision[0].merge, patches, vision[0].class_token)
            if vision
            else None,
            frames=FrameFormat(audio[0].name, audio[0].mels, audio[0].merge, frames) if audio else None,
            target_images=target_images,
        )

    @property
    def encoder_formats(self) -> dict[str, EncoderFormat]:
        """The formats of the encoders' inputs, by field: `patches`, `frames`."""
        return {
            encoder_format.field: encoder_format for encoder_format in (self.patches, self.frames) if encoder_format
        }
