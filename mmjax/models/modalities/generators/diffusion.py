"""Diffusion: noisy images and their targets, DDIM sampling (arXiv 2010.02502), guidance (arXiv 2207.12598).

A noisy image at time t is x_t = a_t x + s_t noise. The network predicts the noise (`epsilon`), the velocity
v = a_t noise - s_t x where a_t² + s_t² = 1, or the velocity noise - x of a rectified `flow`, where a_t + s_t = 1.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mmjax.models.modalities.generators.noise_schedules import NoiseSchedule, Times

Images = Float[Array, "b y x c"]
Conditions = Float[Array, "b q k"]
Keys = Array
"""A random key for each image."""


def sample_keys(seed_and_step: Int[Array, " 2"], samples: Int[Array, " b"], purpose: int) -> Keys:
    """Makes keys that depend on seed, step, sample id and purpose alone, so that all layouts draw the same values."""
    step_key = jax.random.fold_in(jax.random.key(seed_and_step[0]), seed_and_step[1])
    return jax.vmap(lambda sample: jax.random.fold_in(jax.random.fold_in(step_key, sample), purpose))(samples)


def standard_normals(keys: Keys, shape: tuple[int, ...]) -> Images:
    """Standard normal noise for each image, `[b, *shape]`."""
    return jax.vmap(lambda key: jax.random.normal(key, shape))(keys)


def add_noise(schedule: NoiseSchedule, images: Images, noise: Images, time: Times) -> tuple[Images, Images]:
    """Noisy images x_t at the times, and the targets that the network is to predict."""
    signal_scale, noise_scale = _scales_per_image(schedule, time)
    targets = {
        "epsilon": lambda: noise,
        "velocity": lambda: signal_scale * noise - noise_scale * images,
        "flow": lambda: noise - images,
    }
    return signal_scale * images + noise_scale * noise, targets[schedule.prediction]()


def image_and_noise(schedule: NoiseSchedule, x: Images, predicted: Images, time: Times) -> tuple[Images, Images]:
    """The image and the noise that noisy images x consist of, according to the network's prediction."""
    signal_scale, noise_scale = _scales_per_image(schedule, time)
    solutions = {
        "epsilon": lambda: ((x - noise_scale * predicted) / signal_scale, predicted),
        "velocity": lambda: (signal_scale * x - noise_scale * predicted, noise_scale * x + signal_scale * predicted),
        "flow": lambda: (x - noise_scale * predicted, x + signal_scale * predicted),
    }
    return solutions[schedule.prediction]()


def ddim_sample(
    schedule: NoiseSchedule, predict: Callable[[Images, Times], Images], noise: Images, steps: int, *, clip: bool
) -> Images:
    """Deterministic DDIM sampling from pure noise; of a rectified flow it is Euler's method.

    Args:
        schedule: Noise schedule of the network's training.
        predict: The network's prediction for noisy images at their times.
        noise: Standard normal noise, in the shape of the samples.
        steps: Number of steps, at least 1.
        clip: Whether predicted images are clipped to [-1, 1]: for pixels, not for latents, which have no bounds.

    Returns:
        Images or latents.

    Raises:
        ValueError: `steps` is below 1.
    """
    if steps < 1:
        raise ValueError(f"DDIM needs at least 1 step, not {steps}")
    times = jnp.asarray(schedule.sampling_times(steps), jnp.float32)

    def step(x: jax.Array, interval: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        time, next_time = (jnp.full(x.shape[:1], end) for end in interval)
        image, noise = image_and_noise(schedule, x, predict(x, time), time)
        image = jnp.clip(image, -1.0, 1.0) if clip else image
        signal_scale, noise_scale = _scales_per_image(schedule, next_time)
        return signal_scale * image + noise_scale * noise, None

    return jax.lax.scan(step, noise, (times[:-1], times[1:]))[0]


def classifier_free_guidance(
    predict: Callable[[Images, Times, Conditions], Images], conditions: Conditions, scale: float
) -> Callable[[Images, Times], Images]:
    """Makes a guided prediction for `ddim_sample`: u + scale * (c - u), with c under the conditions, u without them.

    Both predictions are computed in one batch.

    Args:
        predict: Prediction for images at times under conditions; conditions of zeros mean none (`drop_conditions`).
        conditions: Conditions of each image.
        scale: Guidance scale; 1 for the conditional prediction alone, computed without the other.
    """
    if scale == 1.0:
        return lambda x, time: predict(x, time, conditions)
    both_conditions = jnp.concatenate([jnp.zeros_like(conditions), conditions])

    def guided_prediction(x: Images, time: Times) -> Images:
        both = predict(jnp.concatenate([x, x]), jnp.concatenate([time, time]), both_conditions)
        unconditional, conditional = jnp.split(both, 2)
        return unconditional + scale * (conditional - unconditional)

    return guided_prediction


def drop_conditions(conditions: Conditions, keys: Keys, rate: float) -> Conditions:
    """Sets all conditions of an image to zero with probability `rate`."""
    keep = jax.vmap(lambda key: jax.random.uniform(key) >= rate)(keys)
    return conditions * keep.astype(conditions.dtype)[:, None, None]


def _scales_per_image(schedule: NoiseSchedule, time: Times) -> tuple[Float[Array, "b 1 1 1"], Float[Array, "b 1 1 1"]]:
    """Returns the scales of signal and noise, shaped to multiply images."""
    signal_scale, noise_scale = schedule.signal_and_noise(time)
    return signal_scale[:, None, None, None], noise_scale[:, None, None, None]
