"""Frequencies of rotary position embeddings, and how they are scaled for sequences longer than in pretraining.

`BackboneConfig.rope_scaling` is one of the scalings; `data.packing.pipeline` refuses rows that are too long for it.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float

from configs.common.short_repr import short_repr

Frequencies = Float[np.ndarray, " half"]


def rotary_frequencies(width: int, base: float) -> Frequencies:
    """Angles per position of the pairs of channels of a head, `base ** (-2i / width)` (arXiv 2104.09864)."""
    return base ** (-np.arange(0, width, 2, dtype=np.float64) / width)


def _require_above_zero(scaling: object, *names: str) -> None:
    """Raises ValueError, naming the field, if one of these fields is not above 0, or has an item that is not."""
    for name in names:
        value = getattr(scaling, name)
        if not all(number > 0 for number in (value if isinstance(value, tuple) else (value,))):
            raise ValueError(f"{type(scaling).__name__}.{name} is {value!r:.60}; it must be more than 0")


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """Positions divided by a factor (arXiv 2306.15595).

    Attributes:
        factor: The factor.
    """

    factor: float

    def __post_init__(self) -> None:
        _require_above_zero(self, "factor")

    def frequencies(self, width: int, base: float) -> Frequencies:
        """Scaled angles per position of the pairs of channels of a head."""
        return rotary_frequencies(width, base) / self.factor

    @property
    def attention_scaling(self) -> float:
        """Factor of cosines and sines."""
        return 1.0


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's scaling: low frequencies are divided by a factor, high ones kept, others interpolated (2407.21783).

    Attributes:
        factor: Divisor of the lowest frequencies.
        low_freq_factor: Frequencies with fewer waves than this in the original length are divided by `factor`.
        high_freq_factor: Frequencies with more waves than this in the original length are kept.
        original_positions: Positions of the original pretraining.
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192

    __repr__ = short_repr

    def __post_init__(self) -> None:
        _require_above_zero(self, "factor", "low_freq_factor", "high_freq_factor", "original_positions")

    def frequencies(self, width: int, base: float) -> Frequencies:
        """Scaled angles per position of the pairs of channels of a head."""
        plain = rotary_frequencies(width, base)
        waves = self.original_positions * plain / (2 * math.pi)
        between = max(self.high_freq_factor - self.low_freq_factor, 1e-9)  # none are, in Llama 4
        kept = np.clip((waves - self.low_freq_factor) / between, 0.0, 1.0)
        return kept * plain + (1 - kept) * plain / self.factor

    @property
    def attention_scaling(self) -> float:
        """Factor of cosines and sines."""
        return 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """YaRN: like `Llama3Scaling` with bounds derived from rotations, and sharper attention (arXiv 2309.00071).

    Attributes:
        factor: Divisor of the lowest frequencies.
        original_positions: Positions of the original pretraining.
        beta_slow: Pairs with fewer rotations than this over the original length are divided by `factor`.
        beta_fast: Pairs with more rotations than this over the original length are kept.
        attention_factor: Factor of cosines and sines; 0 for `yarn_mscale`, the paper's.
        truncate: Whether the bounds of the interpolated pairs are rounded to whole numbers (gpt-oss: not).
        mscale: Where it and `mscale_all_dim` are given (DeepSeek-V2, arXiv 2405.04434), the factor of cosines and sines
            is the quotient of their `yarn_mscale`.
        mscale_all_dim: See `mscale`.
    """

    factor: float
    original_positions: int
    beta_slow: float = 1.0
    beta_fast: float = 32.0
    attention_factor: float = 0.0
    truncate: bool = True
    mscale: float = 0.0
    mscale_all_dim: float = 0.0

    __repr__ = short_repr

    def __post_init__(self) -> None:
        _require_above_zero(self, "factor", "original_positions", "beta_slow", "beta_fast")

    def frequencies(self, width: int, base: float) -> Frequencies:
        """Scaled angles per position of the pairs of channels of a head."""

        def pair(rotations: float) -> float:
            """The pair of channels that turns this often over the original length."""
            return width * math.log(self.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(base))

        first, last = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        plain = rotary_frequencies(width, base)
        divided = np.clip((np.arange(width // 2) - first) / max(last - first, 1e-3), 0.0, 1.0)
        return (1 - divided) * plain + divided * plain / self.factor

    @property
    def attention_scaling(self) -> float:
        """Factor of cosines and sines."""
        if self.attention_factor:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return yarn_mscale(self.factor, self.mscale) / yarn_mscale(self.factor, self.mscale_all_dim)
        return yarn_mscale(self.factor)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """YaRN's factor of queries and keys for positions that are divided by a factor, 0.1 mscale ln(factor) + 1."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongRopeScaling:
    """LongRoPE: every pair of channels is divided by a number of its own that was searched for (arXiv 2402.13753).

    The published models divide by other numbers in texts of more than the original positions. So that the rotation of a
    text depends neither on the texts packed with it nor on its length when it is continued, the configuration
    says which numbers hold, for all texts alike; rows of data that could hold a longer text are refused without `long`.

    Attributes:
        short_factors: Divisors for texts of up to `original_positions`.
        long_factors: Divisors for longer texts.
        original_positions: Positions of the original pretraining.
        factor: How many times longer the longest texts may be.
        attention_factor: Factor of cosines and sines; 0 for the paper's sqrt(1 + ln(factor) / ln(original_positions)).
        long: Whether `long_factors` hold.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_positions: int
    factor: float
    attention_factor: float = 0.0
    long: bool = False

    __repr__ = short_repr

    def __post_init__(self) -> None:
        _require_above_zero(self, "short_factors", "long_factors", "original_positions", "factor")
        if len(self.short_factors) != len(self.long_factors):
            raise ValueError(
                f"LongRopeScaling has {len(self.short_factors)} short_factors and {len(self.long_factors)} "
                "long_factors; give one of each for every pair of channels"
            )

    def frequencies(self, width: int, base: float) -> Frequencies:
        """Scaled angles per position of the pairs of channels of a head."""
        return rotary_frequencies(width, base) / np.array(self.long_factors if self.long else self.short_factors)

    @property
    def attention_scaling(self) -> float:
        """Factor of cosines and sines."""
        longer = math.log(max(self.factor, 1.0)) / math.log(self.original_positions)
        return self.attention_factor or math.sqrt(1 + longer)


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling
