"""What a model and its rows ask of every sample: the streams its encoders read, and what its generator draws."""

import dataclasses

from configs.architectures import AudioConfig, ModelConfig, VisionConfig
from data.errors import DataError


def _require_positive(form: object) -> None:
    for field in dataclasses.fields(form):
        value = getattr(form, field.name)
        if isinstance(value, int) and value < 1:
            raise DataError(f"{type(form).__name__}.{field.name} is {value}; it must be at least 1")


@dataclasses.dataclass(frozen=True)
class PatchFormat:
    """What a vision encoder reads: flattened patches, of which a cell of merge x merge becomes one token.

    Attributes:
        module: Name of the encoder.
        patch: Side of a patch in pixels.
        merge: Side of a cell in patches.
        most: Most patches one sample may have; larger images are shrunk to it.
    """

    module: str = "vision"
    patch: int = 8
    merge: int = 2
    most: int = 128

    def __post_init__(self) -> None:
        _require_positive(self)
        if self.most % self.cell:
            raise DataError(f"a row of {self.most} patches must be a multiple of merge² = {self.cell}; change it")

    field = "patches"
    stride = 1
    position_shape = (2,)

    @property
    def cell(self) -> int:
        """Patches that one `<image>` token stands for."""
        return self.merge * self.merge

    @property
    def width(self) -> int:
        """Numbers in a flattened patch."""
        return self.patch * self.patch * 3

    @property
    def unit(self) -> int:
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
    most: int = 3000

    def __post_init__(self) -> None:
        _require_positive(self)
        if self.most % self.cell:
            raise DataError(f"a row of {self.most} frames must be a multiple of 2 * merge = {self.cell}; change it")

    field = "frames"
    stride = 2
    position_shape = ()

    @property
    def cell(self) -> int:
        """Frames that one `<audio>` token stands for."""
        return self.stride * self.merge

    @property
    def width(self) -> int:
        """Numbers in a frame."""
        return self.mels


StreamFormat = PatchFormat | FrameFormat


@dataclasses.dataclass(frozen=True)
class DrawingFormat:
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
    drawing: DrawingFormat | None = DrawingFormat()

    @classmethod
    def of(cls, model: ModelConfig, patches: int, frames: int = 0) -> "SampleFormat":
        """The format of a model, at row capacities of so many patches and frames.

        Raises:
            DataError: Two encoders of one modality, two generators, or pixels that are not RGB.
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
        return cls(
            PatchFormat(seeing[0].name, seeing[0].patch, seeing[0].merge, patches) if seeing else None,
            FrameFormat(hearing[0].name, hearing[0].mels, hearing[0].merge, frames) if hearing else None,
            DrawingFormat(*((g := model.generators[0]).name, g.image_size, g.conditions)) if model.generators else None,
        )

    @property
    def streams(self) -> dict[str, StreamFormat]:
        """The formats of what encoders read, by field: `patches`, `frames`."""
        return {each.field: each for each in (self.patches, self.frames) if each}
