"""Architectures as frozen dataclasses: the one description from which Flax modules and planner specs are both built."""

import dataclasses

from configs.audio import AudioConfig
from configs.autoencoder import AutoencoderConfig
from configs.backbone import BackboneConfig
from configs.diffusion import CosineSchedule, ScaledLinearSchedule
from configs.experts import ExpertsConfig
from configs.generator import GeneratorConfig
from configs.vision import VisionConfig

__all__ = [
    "DTYPES",
    "AudioConfig",
    "AutoencoderConfig",
    "BackboneConfig",
    "CosineSchedule",
    "ExpertsConfig",
    "GeneratorConfig",
    "ModelConfig",
    "ScaledLinearSchedule",
    "VisionConfig",
]

DTYPES = {"float32": 4, "bfloat16": 2}  # bytes of a number


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Encoders that feed one backbone that feeds generators.

    Attributes:
        encoders: Each projects into the backbone's width.
        backbone: The language model.
        generators: Each reads the backbone's last hidden states at its condition positions.
        dtype: Precision of the compute, `float32` or `bfloat16`; master weights are float32.
    """

    encoders: tuple[VisionConfig | AudioConfig, ...] = (VisionConfig(),)
    backbone: BackboneConfig = BackboneConfig()
    generators: tuple[GeneratorConfig, ...] = (GeneratorConfig(),)
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"ModelConfig.dtype is {self.dtype!r}; choose one of {', '.join(DTYPES)}")
        names = [module.name for module in (*self.encoders, self.backbone, *self.generators)]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"ModelConfig: module names must differ, but {', '.join(repeated)} stands more than once")

    @property
    def element_bytes(self) -> int:
        """Bytes of a number in compute precision."""
        return DTYPES[self.dtype]
