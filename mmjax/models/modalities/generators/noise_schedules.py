"""Noise schedules: the scales of signal and noise at each time, and the times that a sampler steps through.

Times count steps from 0 (no noise) to `timesteps` (pure noise); a network takes them as they are.
"""

import functools
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from configs.architectures import CosineSchedule, RectifiedFlowSchedule, ScaledLinearSchedule

Times = Float[Array, " b"]

Prediction = Literal["velocity", "epsilon", "flow"]
"""Kind of a network's prediction, for an image x and its noise n: a n - s x, n, or n - x."""

CONTINUOUS_TIMESTEPS = 1000  # of the schedules whose times need not be whole
STEPS_OFFSET = 1  # the last DDIM step starts at this time, as in Stable Diffusion and AudioLDM


@runtime_checkable
class NoiseSchedule(Protocol):
    """A noise schedule.

    Attributes:
        prediction: Kind of the network's prediction.
    """

    prediction: Prediction

    def sample_time(self, key: jax.Array) -> Float[Array, ""]:
        """Draws a time to train at."""
        ...

    def signal_and_noise(self, time: Times) -> tuple[Times, Times]:
        """Returns the scales a_t of the signal and s_t of the noise."""
        ...

    def sampling_times(self, steps: int) -> Float[np.ndarray, " times"]:
        """The `steps` + 1 times from pure noise to image, both ends included."""
        ...


class CosineNoiseSchedule:
    """a_t = cos(π t / 2T) and s_t = sin(π t / 2T) at continuous times (arXiv 2202.00512)."""

    prediction: Prediction = "velocity"

    def sample_time(self, key: jax.Array) -> Float[Array, ""]:
        """Draws a time uniformly."""
        return CONTINUOUS_TIMESTEPS * jax.random.uniform(key)

    def signal_and_noise(self, time: Times) -> tuple[Times, Times]:
        """Returns the scales of signal and noise."""
        angle = time * (np.pi / 2 / CONTINUOUS_TIMESTEPS)
        return jnp.cos(angle), jnp.sin(angle)

    def sampling_times(self, steps: int) -> Float[np.ndarray, " times"]:
        """Returns evenly spaced times."""
        return np.linspace(CONTINUOUS_TIMESTEPS, 0.0, steps + 1)


class ScaledLinearNoiseSchedule:
    """a_t² = product of (1 - beta_i) for i up to t, with √beta linear in i, at whole times (arXiv 2112.10752)."""

    def __init__(self, config: ScaledLinearSchedule) -> None:
        """Computes the table of a_t² for every time."""
        self.timesteps = config.timesteps
        self.prediction: Prediction = "velocity" if config.prediction == "velocity" else "epsilon"
        betas = np.linspace(config.beta_start**0.5, config.beta_end**0.5, config.timesteps) ** 2
        self.signal_squared = np.cumprod(1 - betas)

    def sample_time(self, key: jax.Array) -> Float[Array, ""]:
        """Draws a whole time uniformly."""
        return jax.random.randint(key, (), 0, self.timesteps).astype(jnp.float32)

    def signal_and_noise(self, time: Times) -> tuple[Times, Times]:
        """Returns the scales of signal and noise at whole times."""
        step = time.astype(jnp.int32)
        signal, noise = (
            np.sqrt(squared).astype(np.float32) for squared in (self.signal_squared, 1 - self.signal_squared)
        )
        return jnp.asarray(signal)[step], jnp.asarray(noise)[step]

    def sampling_times(self, steps: int) -> Float[np.ndarray, " times"]:
        """Equally spaced whole times that start below the last one ("leading" in arXiv 2305.08891, table 2).

        Raises:
            ValueError: There are more steps than times.
        """
        if steps > self.timesteps - STEPS_OFFSET:
            raise ValueError(f"DDIM in {steps} steps needs more than the {self.timesteps} time steps of the schedule")
        interval = self.timesteps // steps
        return np.append(np.arange(steps)[::-1] * interval + STEPS_OFFSET, 0).astype(float)


class RectifiedFlowNoiseSchedule:
    """a_t = 1 - t / T and s_t = t / T at continuous times (arXiv 2209.03003), most of them far from both ends."""

    prediction: Prediction = "flow"

    def __init__(self, config: RectifiedFlowSchedule) -> None:
        """Takes the distribution of training times and the shift."""
        self.config = config

    def sample_time(self, key: jax.Array) -> Float[Array, ""]:
        """Draws a time whose logit is normal (arXiv 2403.03206, section 3.1), and shifts it."""
        mean, std = self.config.logit_mean, self.config.logit_std
        time = jax.nn.sigmoid(mean + std * jax.random.normal(key)) if std else jax.random.uniform(key)
        return CONTINUOUS_TIMESTEPS * self._shifted(time)

    def signal_and_noise(self, time: Times) -> tuple[Times, Times]:
        """Returns the scales of signal and noise, which sum to 1."""
        noise = time / CONTINUOUS_TIMESTEPS
        return 1.0 - noise, noise

    def sampling_times(self, steps: int) -> Float[np.ndarray, " times"]:
        """Evenly spaced times, shifted (arXiv 2403.03206, equation 23)."""
        return CONTINUOUS_TIMESTEPS * self._shifted(np.linspace(1.0, 0.0, steps + 1))

    def _shifted(self, time: Any) -> Any:
        return self.config.shift * time / (1.0 + (self.config.shift - 1.0) * time)


@functools.singledispatch
def noise_schedule(config: object) -> NoiseSchedule:
    """Builds the noise schedule that a configuration describes.

    A new kind registers its own function with `@noise_schedule.register`, by the type of its configuration.
    """
    raise TypeError(
        f"no noise schedule is built from a {type(config).__name__}; register one with noise_schedule.register"
    )


@noise_schedule.register
def _(config: CosineSchedule) -> NoiseSchedule:
    return CosineNoiseSchedule()


@noise_schedule.register
def _(config: ScaledLinearSchedule) -> NoiseSchedule:
    return ScaledLinearNoiseSchedule(config)


@noise_schedule.register
def _(config: RectifiedFlowSchedule) -> NoiseSchedule:
    return RectifiedFlowNoiseSchedule(config)
