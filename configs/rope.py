"""Rotary position embedding's frequencies, and how they are stretched for sequences longer than those trained on."""

import dataclasses
import math

import numpy as np
from jaxtyping import Float

Frequencies = Float[np.ndarray, " half"]


def rotary_frequencies(width: int, base: float) -> Frequencies:
    """Angles per position of the pairs of a head of one width (arXiv 2104.09864)."""
    return base ** (-np.arange(0, width, 2, dtype=np.float64) / width)


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """Positions divided by a factor (arXiv 2306.15595)."""

    factor: float

    def frequencies(self, width: int, base: float) -> Frequencies:
        """Of heads of one width."""
        return rotary_frequencies(width, base) / self.factor

    @property
    def attention_scaling(self) -> float:
        """What cosines and sines are multiplied by."""
        return 1.0


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's: long waves divided by a factor, short ones left, those between on a line (arXiv 2407.21783).

    Attributes:
        factor: By which the longest waves are divided.
        low, high: Bounds of the middle, as waves in the original length.
        original: Positions that the model was trained on first.
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192

    def frequencies(self, width: int, base: float) -> Frequencies:
        """Of heads of one width."""
        plain = rotary_frequencies(width, base)
        waves = self.original_positions * plain / (2 * math.pi)
        kept = np.clip((waves - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0.0, 1.0)
        return kept * plain + (1 - kept) * plain / self.factor

    @property
    def attention_scaling(self) -> float:
        """What cosines and sines are multiplied by."""
        return 1.0


@dataclasses.dataclass(frozen=True)
class YarnScaling:
    """YaRN: as `Llama3Scaling` between bounds found from rotations, and sharper attention (arXiv 2309.00071).

    Attributes:
        factor: By which the longest waves are divided.
        original: Positions that the model was trained on first.
        slow, fast: Rotations over the original length below which waves are divided, above which they are left.
        attention: What cosines and sines are multiplied by; 0 for the paper's 0.1 ln(factor) + 1.
    """

    factor: float
    original_positions: int
    beta_slow: float = 1.0
    beta_fast: float = 32.0
    attention_factor: float = 0.0

    def frequencies(self, width: int, base: float) -> Frequencies:
        """Of heads of one width."""

        def pair(rotations: float) -> float:
            """The pair that turns so often over the original length."""
            return width * math.log(self.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(base))

        first = max(math.floor(pair(self.beta_fast)), 0)
        last = min(math.ceil(pair(self.beta_slow)), width - 1)
        plain = rotary_frequencies(width, base)
        divided = np.clip((np.arange(width // 2) - first) / max(last - first, 1e-3), 0.0, 1.0)
        return (1 - divided) * plain + divided * plain / self.factor

    @property
    def attention_scaling(self) -> float:
        """What cosines and sines are multiplied by."""
        return self.attention_factor or 0.1 * math.log(self.factor) + 1.0


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling
