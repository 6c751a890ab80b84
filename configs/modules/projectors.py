"""Projectors between an encoder and the backbone: adjacent positions of the encoder become one backbone token.

`EncoderConfig.projector` is one of them; `mmjax.models.modalities.projectors` computes them.
"""

import dataclasses

from configs.common.checks import require_one_of, require_positive, require_types
from configs.common.short_repr import short_repr
from configs.modules.transformer import ACTIVATIONS

_HIDDEN_WIDTHS = ("backbone", "positions")


@dataclasses.dataclass(frozen=True)
class MLPProjectorConfig:
    """Concatenates adjacent positions and applies two matmuls (LLaVA, arXiv 2310.03744; InternVL, arXiv 2404.16821).

    Attributes:
        norm: Whether a LayerNorm comes first (InternVL).
        activation: Activation function between the matmuls.
        hidden: Width between the matmuls: the backbone's, or the width of the concatenated positions (Qwen2-VL's patch
            merger, arXiv 2409.12191).
        norm_epsilon: Added to the variance by the LayerNorm.
    """

    norm: bool = False
    activation: str = "gelu_tanh"
    hidden: str = "backbone"
    norm_epsilon: float = 1e-5

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        require_one_of(self, "activation", ACTIVATIONS)
        require_one_of(self, "hidden", _HIDDEN_WIDTHS)

    def hidden_width(self, inputs: int, outputs: int) -> int:
        """Width between the matmuls, from the width of the concatenated positions and the backbone's width."""
        return outputs if self.hidden == "backbone" else inputs


@dataclasses.dataclass(frozen=True)
class ResamplerConfig:
    """Cross-attention from one query per group of adjacent positions to all of its image or clip (as in 2308.12966).

    The query is a learned vector plus an embedding of the group's position, so that images and clips of any size can be
    packed.

    Attributes:
        heads: Heads of the cross-attention, which has the backbone's width.
    """

    heads: int = 8

    def __post_init__(self) -> None:
        require_types(self)
        require_positive(self, "heads")


@dataclasses.dataclass(frozen=True)
class LinearProjectorConfig:
    """Averages adjacent positions and applies one matmul (PaliGemma, arXiv 2407.07726; Gemma 3, arXiv 2503.19786).

    Where one position becomes one token there is no average (Qwen2-Audio, arXiv 2407.10759).

    Attributes:
        norm: Whether an RMSNorm, with scales of 1 + its parameter, follows the average (Gemma 3).
        norm_epsilon: Added to its mean square.
        bias: Whether the matmul has a bias (PaliGemma).
    """

    norm: bool = False
    norm_epsilon: float = 1e-6
    bias: bool = True

    def __post_init__(self) -> None:
        require_types(self)


@dataclasses.dataclass(frozen=True)
class AdapterProjectorConfig:
    """Concatenates adjacent positions and applies three matmuls without biases, a GELU between them (Llama 4).

    Attributes:
        width: Width between the matmuls.
    """

    width: int = 4096

    def __post_init__(self) -> None:
        require_types(self)
        require_positive(self, "width")


ProjectorConfig = MLPProjectorConfig | ResamplerConfig | LinearProjectorConfig | AdapterProjectorConfig
