"""Cosine diffusion with velocity prediction (arXiv 2202.00512) and DDIM sampling (arXiv 2010.02502)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Images = Float[Array, "b z z c"]


def signal_and_noise(time: Float[Array, " b"]) -> tuple[Float[Array, "b 1 1 1"], Float[Array, "b 1 1 1"]]:
    """Shares of signal and noise at times in [0, 1]: cos and sin, so that their squares add up to one."""
    angle = (time * (jnp.pi / 2))[:, None, None, None]
    return jnp.cos(angle), jnp.sin(angle)


def draw(
    seed_and_step: Int[Array, " 2"], samples: Int[Array, " b"], shape: tuple[int, ...]
) -> tuple[Float[Array, " b"], Images]:
    """Time and noise of each image, keyed by (seed, step, sample id) alone, so that no layout changes them."""
    seed, step = seed_and_step[0], seed_and_step[1]

    def one(sample: jax.Array) -> tuple[jax.Array, jax.Array]:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), sample)
        when, what = jax.random.split(key)
        return jax.random.uniform(when), jax.random.normal(what, shape)

    return jax.vmap(one)(samples)


def velocity(images: Images, noise: Images, time: Float[Array, " b"]) -> tuple[Images, Images]:
    """The noised images and the velocity to predict for them."""
    signal, share = signal_and_noise(time)
    return signal * images + share * noise, signal * noise - share * images


def sample(predict: Callable[[Images, Float[Array, " b"]], Images], noise: Images, steps: int) -> Images:
    """Deterministic DDIM from pure noise in `steps` even steps.

    Args:
        predict: Velocity of noised images at their times.
        noise: Standard normal, the shape of the images to make.
        steps: At least 1.

    Returns:
        Images in [-1, 1].
    """
    if steps < 1:
        raise ValueError(f"DDIM needs at least 1 step, not {steps}")
    times = jnp.linspace(1.0, 0.0, steps + 1)

    def move(x: jax.Array, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        now, then = (jnp.full(x.shape[:1], end) for end in ends)
        signal, share = signal_and_noise(now)
        v = predict(x, now)
        image, noise = signal * x - share * v, share * x + signal * v
        image = jnp.clip(image, -1.0, 1.0)
        signal, share = signal_and_noise(then)
        return signal * image + share * noise, None

    return jax.lax.scan(move, noise, (times[:-1], times[1:]))[0]
