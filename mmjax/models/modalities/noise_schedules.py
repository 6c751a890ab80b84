"""Noise schedules: how much of an image is signal and how much noise at a time, and the times that DDIM goes through.

Times count steps from 0 to `timesteps`; a U-Net takes them as they are.
"""

import functools
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from configs.architectures import CosineSchedule, ScaledLinearSchedule

Times = Float[Array, " b"]

COSINE_TIMESTEPS = 1000
OFFSET = 1  # of DDIM's steps, as Stable Diffusion and AudioLDM take them


@runtime_checkable
class NoiseSchedule(Protocol):
    """What a schedule tells.

    Attributes:
        prediction: What the U-Net predicts, `velocity` or `epsilon`.
    """

    prediction: str

    def sample_time(self, key: jax.Array) -> Float[Array, ""]:
        """A time to train at."""
        ...

    def signal_and_noise(self, time: Times) -> tuple[Times, Times]:
        """Shares of signal and noise, whose squares add up to one."""
        ...

    def ddim_times(self, steps: int) -> Float[np.ndarray, " times"]:
        """The times from noise to image in `steps` steps of DDIM, both ends among them."""
        ...


class CosineNoiseSchedule:
    """Shares are cosine and sine of an angle that grows evenly with continuous time (arXiv 2202.00512)."""

    prediction = "velocity"

    def sample_time(self, key: jax.Array) -> Float[Array, ""]:
        """See `NoiseSchedule.draw`."""
        return COSINE_TIMESTEPS * jax.random.uniform(key)

    def signal_and_noise(self, time: Times) -> tuple[Times, Times]:
        """See `NoiseSchedule.shares`."""
        angle = time * (np.pi / 2 / COSINE_TIMESTEPS)
        return jnp.cos(angle), jnp.sin(angle)

    def ddim_times(self, steps: int) -> Float[np.ndarray, " times"]:
        """Even steps."""
        return np.linspace(COSINE_TIMESTEPS, 0.0, steps + 1)


class ScaledLinearNoiseSchedule:
    """A table over whole time steps (arXiv 2112.10752)."""

    def __init__(self, config: ScaledLinearSchedule) -> None:
        self.timesteps, self.prediction = config.timesteps, config.prediction
        betas = np.linspace(config.beta_start**0.5, config.beta_end**0.5, config.timesteps) ** 2
        self.signal = np.cumprod(1 - betas)
        """Squared share of signal at every step."""

    def sample_time(self, key: jax.Array) -> Float[Array, ""]:
        """See `NoiseSchedule.draw`; whole steps."""
        return jax.random.randint(key, (), 0, self.timesteps).astype(jnp.float32)

    def signal_and_noise(self, time: Times) -> tuple[Times, Times]:
        """See `NoiseSchedule.shares`; of whole steps."""
        step = time.astype(jnp.int32)
        signal, noise = (np.sqrt(squares).astype(np.float32) for squares in (self.signal, 1 - self.signal))
        return jnp.asarray(signal)[step], jnp.asarray(noise)[step]

    def ddim_times(self, steps: int) -> Float[np.ndarray, " times"]:
        """Equal whole steps that begin below the last one ("leading") and end at the first (2305.08891, table 2).

        Raises:
            ValueError: More steps than there are.
        """
        if steps > self.timesteps - OFFSET:
            raise ValueError(f"DDIM in {steps} steps needs more than the {self.timesteps} time steps of the schedule")
        each = self.timesteps // steps
        return np.append(np.arange(steps)[::-1] * each + OFFSET, 0).astype(float)


@functools.singledispatch
def noise_schedule(config: object) -> NoiseSchedule:
    """The schedule of a configuration. A new kind registers its own, by the type of its configuration."""
    raise TypeError(f"no noise schedule is built from a {type(config).__name__}; register one with noise_schedule")


@noise_schedule.register
def _(config: CosineSchedule) -> NoiseSchedule:
    return CosineNoiseSchedule()


@noise_schedule.register
def _(config: ScaledLinearSchedule) -> NoiseSchedule:
    return ScaledLinearNoiseSchedule(config)
