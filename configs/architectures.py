"""Architectures as frozen dataclasses, from which the Flax modules and the planners' specs are both built."""

import dataclasses

from configs.attention.latent_attention import LatentAttentionConfig
from configs.common.checks import require_types
from configs.common.short_repr import short_repr
from configs.modules.backbone import BackboneConfig
from configs.modules.diffusion_transformer import DiTConfig
from configs.modules.encoders import AudioConfig, EncoderConfig, VisionConfig
from configs.modules.experts import ExpertsConfig, RouterConfig
from configs.modules.generator import (
    AutoencoderConfig,
    CosineSchedule,
    DenoisingConfig,
    GeneratorConfig,
    RectifiedFlowSchedule,
    ScaledLinearSchedule,
    UNetConfig,
)
from configs.modules.lora import LoraConfig

__all__ = [
    "DTYPE_BYTES",
    "AudioConfig",
    "AutoencoderConfig",
    "BackboneConfig",
    "CosineSchedule",
    "DenoisingConfig",
    "DiTConfig",
    "EncoderConfig",
    "ExpertsConfig",
    "GeneratorConfig",
    "UNetConfig",
    "LatentAttentionConfig",
    "LoraConfig",
    "ModelConfig",
    "RectifiedFlowSchedule",
    "RouterConfig",
    "ScaledLinearSchedule",
    "VisionConfig",
]

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
"""Bytes of an element."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Encoders that feed one backbone that feeds generators.

    Attributes:
        encoders: Encoders; each projects to the backbone's width.
        backbone: The language model.
        generators: Generators; each is conditioned on the backbone's last hidden states at some positions.
        lora: Low-rank adapters; each names the module it adapts, and is the trainable part `<module>_lora`.
        dtype: Compute precision, `float32` or `bfloat16`; master weights are float32.
    """

    encoders: tuple[EncoderConfig, ...] = (VisionConfig(),)
    backbone: BackboneConfig = BackboneConfig()
    generators: tuple[GeneratorConfig, ...] = (UNetConfig(),)
    dtype: str = "float32"
    lora: tuple[LoraConfig, ...] = ()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"ModelConfig.dtype is {self.dtype!r}; choose one of {', '.join(DTYPE_BYTES)}")
        names = [module.name for module in (*self.encoders, self.backbone, *self.generators)]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"ModelConfig: module names must differ, but {', '.join(repeated)} is used more than once")
        if self.early_blocks >= self.backbone.depth:
            raise ValueError(
                f"ModelConfig: the first {self.early_blocks} blocks of {self.backbone.name} take features of encoders "
                f"(deepstack_layers), and it has {self.backbone.depth}; it needs one more"
            )
        adapted = [lora.part for lora in self.lora]
        for part in adapted:
            if part not in names:
                raise ValueError(
                    f"ModelConfig.lora adapts {part!r}, which is no module; choose from {', '.join(names)}"
                )
            if any(isinstance(module, DiTConfig) and module.name == part for module in self.generators):
                raise ValueError(
                    f"ModelConfig.lora adapts {part!r}, a diffusion transformer, whose blocks have no adapters; adapt "
                    "another module, or train all of it (`trainable`)"
                )
            if adapted.count(part) > 1:
                raise ValueError(f"ModelConfig.lora adapts {part} more than once; give it one rank")

    def lora_of(self, name: str) -> LoraConfig | None:
        """The adapters of a module; None if it has none."""
        return next((lora for lora in self.lora if lora.part == name), None)

    @property
    def uses_fp8(self) -> bool:
        """Whether some blocks have matmuls with FP8 operands."""
        return any(module.fp8 for module in (*self.encoders, self.backbone))

    def with_fp8(self, layers: tuple[str, ...]) -> "ModelConfig":
        """Returns the model with FP8 operands in these layers of all blocks of encoders and backbone, and no others."""
        encoders = tuple(dataclasses.replace(encoder, fp8=layers) for encoder in self.encoders)
        return dataclasses.replace(self, encoders=encoders, backbone=dataclasses.replace(self.backbone, fp8=layers))

    @property
    def early_blocks(self) -> int:
        """Number of the backbone's first blocks to whose outputs features of encoders are added."""
        return max((len(encoder.tapped_layers) for encoder in self.encoders), default=0)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element in compute precision."""
        return DTYPE_BYTES[self.dtype]
