"""Kinds of attention that the layers of one language model may have.

`BackboneConfig.attention_pattern` names them, and `mmjax.models.modalities.attention_kinds` computes them.
"""

import dataclasses
from typing import Literal, get_args

from configs.common.checks import require_positive, require_types

AttentionKind = Literal["global", "local", "chunked", "unrotated"]
ATTENTION_KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)
"""Which earlier positions a position attends to: all; the nearest ones, in a window; the ones of its chunk; or all,
without rotation of queries and keys."""


@dataclasses.dataclass(frozen=True)
class AttentionTemperature:
    """Sharper scores at later positions (arXiv 2501.19399): queries times 1 + scale ln(1 + floor((p + 1) / positions)).

    Attributes:
        scale: Factor of the logarithm; 0 leaves the scores as they are.
        positions: Positions p that have the same factor.
    """

    scale: float = 0.1
    positions: int = 8192

    def __post_init__(self) -> None:
        require_types(self)
        require_positive(self, "positions")
