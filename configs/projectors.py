"""Projectors between an encoder and the backbone: some adjacent positions of the encoder become one backbone token."""

import dataclasses

from configs.checks import require_one_of, require_positive
from configs.transformer import ACTIVATIONS


@dataclasses.dataclass(frozen=True)
class MLPProjectorConfig:
    """Adjacent positions side by side, through two matmuls (LLaVA, arXiv 2310.03744; InternVL, arXiv 2404.16821).

    Attributes:
        norm: Whether a LayerNorm stands in front (InternVL).
        activation: Between the matmuls.
    """

    norm: bool = False
    activation: str = "gelu_tanh"

    def __post_init__(self) -> None:
        require_one_of(self, "activation", ACTIVATIONS)


@dataclasses.dataclass(frozen=True)
class ResamplerConfig:
    """One query for every group of adjacent positions looks at all of its image or clip (after arXiv 2308.12966).

    The query is one learned vector and where the group stands, so that images and clips of any size can be packed.

    Attributes:
        heads: Of the cross-attention, in the backbone's width.
    """

    heads: int = 8

    def __post_init__(self) -> None:
        require_positive(self, "heads")


ProjectorConfig = MLPProjectorConfig | ResamplerConfig
