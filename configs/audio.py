"""Audio encoders."""

import dataclasses

from configs.checks import require_divides, require_positive


@dataclasses.dataclass(frozen=True)
class AudioConfig:
    """Whisper's encoder (arXiv 2212.04356) over packed clips of any length, and the projector behind it.

    Attributes:
        name: Module name; batches and plans refer to it.
        width, depth, heads, ffn: Model width d, layers l, heads h, feed-forward width f.
        mels: Mel bands of a frame. Two frames become one position of the encoder.
        merge: Neighbouring positions that become one backbone token.
    """

    name: str = "audio"
    width: int = 128
    depth: int = 2
    heads: int = 4
    ffn: int = 256
    mels: int = 80
    merge: int = 2

    def __post_init__(self) -> None:
        require_positive(self, "width", "depth", "heads", "ffn", "mels", "merge")
        require_divides(self, "heads", "width")
        if self.width % 4:
            raise ValueError(f"AudioConfig.width = {self.width}; sine positions need a multiple of 4")

    @property
    def merged(self) -> int:
        """Neighbouring positions that become one backbone token."""
        return self.merge
