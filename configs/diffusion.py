"""Noise schedules of diffusion models."""

import dataclasses

from configs.checks import require_one_of, require_positive

PREDICTIONS = ("velocity", "epsilon")


@dataclasses.dataclass(frozen=True)
class CosineSchedule:
    """Continuous time; signal and noise are cosine and sine of an angle, and velocities are predicted (2202.00512)."""


@dataclasses.dataclass(frozen=True)
class ScaledLinearSchedule:
    """Integer time steps, the square roots of whose betas are evenly spaced (arXiv 2112.10752).

    Attributes:
        timesteps: Number of steps from an image to noise.
        beta_start, beta_end: Variance that the first and the last step add.
        prediction: What the U-Net predicts: `velocity` (arXiv 2202.00512) or `epsilon`, the noise (2006.11239).
    """

    timesteps: int = 1000
    beta_start: float = 0.00085
    beta_end: float = 0.012
    prediction: str = "velocity"

    def __post_init__(self) -> None:
        require_positive(self, "timesteps")
        if not 0 < self.beta_start <= self.beta_end < 1:
            raise ValueError(
                f"ScaledLinearSchedule: beta_start = {self.beta_start} and beta_end = {self.beta_end} must lie "
                "between 0 and 1, in this order"
            )
        require_one_of(self, "prediction", PREDICTIONS)


NoiseSchedule = CosineSchedule | ScaledLinearSchedule
