"""Diffusion: noised images and what to predict of them, DDIM sampling (arXiv 2010.02502), guidance (2207.12598)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mmjax.models.modalities.noise_schedules import NoiseSchedule, Times

Images = Float[Array, "b y x c"]
Conditions = Float[Array, "b q k"]
Keys = Array
"""A random key for each image."""


def sample_keys(seed_and_step: Int[Array, " 2"], samples: Int[Array, " b"], purpose: int) -> Keys:
    """Keys by (seed, step, sample id, purpose) alone, so that no layout changes what is drawn with them."""
    of_step = jax.random.fold_in(jax.random.key(seed_and_step[0]), seed_and_step[1])
    return jax.vmap(lambda sample: jax.random.fold_in(jax.random.fold_in(of_step, sample), purpose))(samples)


def standard_normals(keys: Keys, shape: tuple[int, ...]) -> Images:
    """Standard normal noise of each image."""
    return jax.vmap(lambda key: jax.random.normal(key, shape))(keys)


def add_noise(schedule: NoiseSchedule, images: Images, noise: Images, time: Times) -> tuple[Images, Images]:
    """The images with their share of noise at the times, and what to predict of them."""
    signal, share = _by_image(schedule, time)
    target = noise if schedule.prediction == "epsilon" else signal * noise - share * images
    return signal * images + share * noise, target


def image_and_noise(schedule: NoiseSchedule, x: Images, predicted: Images, time: Times) -> tuple[Images, Images]:
    """The image and the noise that noised images are made of, if the prediction is right."""
    signal, share = _by_image(schedule, time)
    if schedule.prediction == "epsilon":
        return (x - share * predicted) / signal, predicted
    return signal * x - share * predicted, share * x + signal * predicted


def ddim_sample(
    schedule: NoiseSchedule, predict: Callable[[Images, Times], Images], noise: Images, steps: int, *, clip: bool
) -> Images:
    """Deterministic DDIM from pure noise.

    Args:
        schedule: What the network was trained on.
        predict: Its prediction of noised images at their times.
        noise: Standard normal, the shape of what is made.
        steps: At least 1.
        clip: Whether images are pixels in [-1, 1], beyond which no guess is believed; latents have no bounds.

    Returns:
        Images or latents.
    """
    if steps < 1:
        raise ValueError(f"DDIM needs at least 1 step, not {steps}")
    times = jnp.asarray(schedule.ddim_times(steps), jnp.float32)

    def move(x: jax.Array, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        now, then = (jnp.full(x.shape[:1], end) for end in ends)
        image, noise = image_and_noise(schedule, x, predict(x, now), now)
        image = jnp.clip(image, -1.0, 1.0) if clip else image
        signal, share = _by_image(schedule, then)
        return signal * image + share * noise, None

    return jax.lax.scan(move, noise, (times[:-1], times[1:]))[0]


def classifier_free_guidance(
    predict: Callable[[Images, Times, Conditions], Images], conditions: Conditions, scale: float
) -> Callable[[Images, Times], Images]:
    """A prediction for `sample`, driven away from the one without conditions by a scale; both in one batch.

    Args:
        predict: Of images at times under conditions; conditions of zeros are none (`drop_conditions`).
        conditions: Of each image.
        scale: 1 for the conditions alone, without a second branch.
    """
    if scale == 1.0:
        return lambda x, time: predict(x, time, conditions)
    both = jnp.concatenate([jnp.zeros_like(conditions), conditions])

    def prediction(x: Images, time: Times) -> Images:
        twice = predict(jnp.concatenate([x, x]), jnp.concatenate([time, time]), both)
        without, with_conditions = jnp.split(twice, 2)
        return without + scale * (with_conditions - without)

    return prediction


def drop_conditions(conditions: Conditions, keys: Keys, share: float) -> Conditions:
    """Conditions with those of about a share of the images all zero."""
    kept = jax.vmap(lambda key: jax.random.uniform(key) >= share)(keys)
    return conditions * kept.astype(conditions.dtype)[:, None, None]


def _by_image(schedule: NoiseSchedule, time: Times) -> tuple[Float[Array, "b 1 1 1"], Float[Array, "b 1 1 1"]]:
    """The schedule's shares, to multiply images by."""
    signal, share = schedule.signal_and_noise(time)
    return signal[:, None, None, None], share[:, None, None, None]
