"""Audio encoders."""

import dataclasses

from configs.checks import require_positive
from configs.projectors import MLPProjectorConfig, ProjectorConfig
from configs.transformer import TransformerConfig


@dataclasses.dataclass(frozen=True)
class AudioConfig(TransformerConfig):
    """Whisper's encoder (arXiv 2212.04356) over packed clips of any length, and the projector behind it.

    Attributes:
        mels: Mel bands of a frame. Two frames become one position of the encoder.
        merge: Neighbouring positions that become one backbone token.
        final_norm: Whether a norm stands behind the last block.
        projector: What stands between the encoder and the backbone.
    """

    name: str = "audio"
    mels: int = 80
    merge: int = 2
    final_norm: bool = True
    projector: ProjectorConfig = MLPProjectorConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "mels", "merge")
        if self.width % 4:
            raise ValueError(f"AudioConfig.width = {self.width}; sine positions need a multiple of 4")

    @property
    def positions_per_token(self) -> int:
        """Neighbouring positions that become one backbone token."""
        return self.merge
