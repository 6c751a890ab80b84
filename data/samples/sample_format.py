"""What a model and its rows ask of every sample: the streams its encoders read, and what its generator draws."""

import dataclasses

from configs.architectures import AudioConfig, ModelConfig, VisionConfig
from data.errors import DataError


def _require_positive(form: object) -> None:
    for field in dataclasses.fields(form):
        value = getattr(form, field.name)
        if field.type is int and value < 1:
            raise DataError(f"{type(form).__name__}.{field.name} is {value}; it must be at least 1")


@dataclasses.dataclass(frozen=True)
class PatchFormat:
    """What a vision encoder reads: flattened patches, of which a cell of merge x merge becomes one token.

    A class token takes a cell of its own before each image's, so that cells stay whole: the first place of it is the
    token's, at row and column -1, the others belong to no image.

    Attributes:
        module: Name of the encoder.
        patch: Side of a patch in pixels.
        merge: Side of a cell in patches.
        most: Most patches one sample may have, with the cells of class tokens; larger images are shrunk to it.
        class_token: Whether a class token stands before the patches of every image.
    """

    module: str = "vision"
    patch: int = 8
    merge: int = 2
    max_length: int = 128
    class_token: bool = False

    def __post_init__(self) -> None:
        _require_positive(self)
        if self.max_length % self.values_per_token:
            raise DataError(
                f"a row of {self.max_length} patches must be a multiple of merge² = {self.values_per_token}; change it"
            )
        if not self.token_count(self.max_length):
            raise DataError(f"a row of {self.max_length} patches holds a class token and no image; raise it")

    field = "patches"
    values_per_position = 1
    position_shape = (2,)

    @property
    def values_per_token(self) -> int:
        """Patches that one `<image>` token stands for."""
        return self.merge * self.merge

    @property
    def prefix_length(self) -> int:
        """Places of the row before an image's patches, a class token's cell."""
        return self.values_per_token * self.class_token

    def token_count(self, length: int) -> int:
        """Backbone tokens of an image that takes so many places of the row."""
        return (length - self.prefix_length) // self.values_per_token

    def attended_positions(self, length: int) -> int:
        """Positions that attend to one another in an image that takes so many places of the row."""
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
    """What an audio encoder reads: mel frames, two of which become a position and merge positions one token.

    Attributes:
        module: Name of the encoder.
        mels: Bands of a frame.
        merge: Positions that become one token.
        most: Most frames one sample may have.
    """

    module: str = "audio"
    mels: int = 80
    merge: int = 2
    max_length: int = 3000

    def __post_init__(self) -> None:
        _require_positive(self)
        if self.max_length % self.values_per_token:
            raise DataError(
                f"a row of {self.max_length} frames must be a multiple of 2 * merge = {self.values_per_token}; change it"
            )

    field = "frames"
    values_per_position = 2
    position_shape = ()

    @property
    def values_per_token(self) -> int:
        """Frames that one `<audio>` token stands for."""
        return self.values_per_position * self.merge

    prefix_length = 0

    def token_count(self, length: int) -> int:
        """Backbone tokens of a clip of so many frames."""
        return length // self.values_per_token

    def attended_positions(self, length: int) -> int:
        """Positions that attend to one another in a clip of so many frames."""
        return length // self.values_per_position

    @property
    def value_width(self) -> int:
        """Numbers in a frame."""
        return self.mels


EncoderFormat = PatchFormat | FrameFormat


@dataclasses.dataclass(frozen=True)
class TargetImageFormat:
    """What a generator draws.

    Attributes:
        module: Name of the generator.
        size: Side z of an image in pixels.
        conditions: Backbone positions q that condition one image.
    """

    module: str = "generator"
    size: int = 32
    conditions: int = 4

    def __post_init__(self) -> None:
        _require_positive(self)


@dataclasses.dataclass(frozen=True)
class SampleFormat:
    """What a model and its capacities ask of every sample.

    Attributes:
        patches: For the vision encoder; None without one.
        frames: For the audio encoder; None without one.
        drawing: For the generator; None without one.
    """

    patches: PatchFormat | None = PatchFormat()
    frames: FrameFormat | None = None
    target_images: TargetImageFormat | None = TargetImageFormat()

    @classmethod
    def for_model(cls, model: ModelConfig, patches: int, frames: int = 0) -> "SampleFormat":
        """The format of a model, at row capacities of so many patches and frames.

        Raises:
            DataError: Two encoders of one modality, two generators, or images to draw that are not RGB or not square.
        """
        seeing = [encoder for encoder in model.encoders if isinstance(encoder, VisionConfig)]
        hearing = [encoder for encoder in model.encoders if isinstance(encoder, AudioConfig)]
        for modules in (seeing, hearing, model.generators):
            if len(modules) > 1:
                names = " and ".join(module.name for module in modules)
                raise DataError(f"the data pipeline feeds one module a modality; the model has {names}")
        for module in (*seeing, *model.generators):
            if module.channels != 3:
                raise DataError(f"{module.name}.channels is {module.channels}; images are read as RGB, so it must be 3")
        for module in model.generators:
            if not isinstance(module.image_size, int):
                raise DataError(
                    f"{module.name}.image_size is {module.image_size}; pictures to draw are square: give a side"
                )
        return cls(
            PatchFormat((v := seeing[0]).name, v.patch, v.merge, patches, v.class_token) if seeing else None,
            FrameFormat(hearing[0].name, hearing[0].mels, hearing[0].merge, frames) if hearing else None,
            TargetImageFormat(*((g := model.generators[0]).name, g.image_size, g.conditions))
            if model.generators
            else None,
        )

    @property
    def encoder_formats(self) -> dict[str, EncoderFormat]:
        """The formats of what encoders read, by field: `patches`, `frames`."""
        return {each.field: each for each in (self.patches, self.frames) if each}
