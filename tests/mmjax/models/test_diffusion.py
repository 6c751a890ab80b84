"""The diffusion's identities, its randomness, and DDIM with a perfect prediction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mmjax.models.diffusion import draw, sample, signal_and_noise, velocity


def images(seed, count=4):
    return jnp.asarray(np.random.default_rng(seed).uniform(-1, 1, (count, 4, 4, 3)), jnp.float32)


def test_shares_go_from_all_signal_to_all_noise_on_a_circle():
    time = jnp.linspace(0.0, 1.0, 11)
    signal, noise = (share[:, 0, 0, 0] for share in signal_and_noise(time))
    np.testing.assert_allclose(np.square(signal) + np.square(noise), np.ones(11), rtol=1e-6)
    np.testing.assert_allclose([signal[0], noise[0], signal[-1], noise[-1]], [1, 0, 0, 1], atol=1e-6)
    assert np.all(np.diff(signal) < 0)


def test_velocity_gives_image_and_noise_back():
    clean, noise, time = images(0), images(1), jnp.array([0.0, 0.3, 0.7, 1.0])
    noised, v = velocity(clean, noise, time)
    signal, share = signal_and_noise(time)
    np.testing.assert_allclose(signal * noised - share * v, clean, atol=1e-6)
    np.testing.assert_allclose(share * noised + signal * v, noise, atol=1e-6)
    np.testing.assert_allclose(noised[0], clean[0], atol=1e-6)


def test_velocity_is_the_derivative_along_the_circle():
    clean, noise, time = images(0, 1), images(1, 1), jnp.array([0.4])
    step = 1e-2
    ahead, behind = (velocity(clean, noise, time + offset)[0] for offset in (step, -step))
    slope = (ahead - behind) / (2 * step * np.float32(np.pi / 2))
    np.testing.assert_allclose(slope, velocity(clean, noise, time)[1], atol=1e-3)


def test_draws_are_keyed_by_seed_step_and_sample_alone():
    drawn = jax.jit(draw, static_argnums=2)
    samples, moved = jnp.array([11, 12, 13, 14, 15]), jnp.array([13, 99, 98, 97, 11])
    time, noise = drawn(jnp.array([3, 5]), samples, (2, 2, 1))
    moved_time, moved_noise = drawn(jnp.array([3, 5]), moved, (2, 2, 1))
    np.testing.assert_array_equal(moved_time[jnp.array([4, 0])], time[jnp.array([0, 2])])
    np.testing.assert_array_equal(moved_noise[jnp.array([4, 0])], noise[jnp.array([0, 2])])
    for other in ([4, 5], [3, 6]):
        assert not np.any(drawn(jnp.array(other), samples, (2, 2, 1))[0] == time)
    assert len(set(time.tolist())) == len(set(noise.ravel().tolist())) / 4 == 5


def test_draws_are_uniform_times_and_standard_normal_noise():
    time, noise = jax.jit(draw, static_argnums=2)(jnp.array([0, 0]), jnp.arange(2000), (2, 2, 1))
    assert float(jnp.min(time)) >= 0 and float(jnp.max(time)) < 1
    np.testing.assert_allclose([jnp.mean(time), jnp.mean(noise), jnp.std(noise)], [0.5, 0, 1], atol=0.03)


@pytest.mark.parametrize("steps", [1, 2, 20])
def test_ddim_with_the_true_velocity_gives_the_image(steps):
    clean = images(0)

    def predict(x, time):
        """The velocity at x of the path that ends in the clean image."""
        signal, share = signal_and_noise(time)
        return (signal * x - clean) / share

    made = jax.jit(lambda noise: sample(predict, noise, steps))(images(1))
    np.testing.assert_allclose(made, clean, atol=1e-4)


def test_ddim_clips_to_pixels():
    made = sample(lambda x, time: -100 * jnp.ones_like(x), images(1), 3)
    np.testing.assert_allclose(made, jnp.ones_like(made), atol=1e-5)


def test_ddim_needs_a_step():
    with pytest.raises(ValueError, match="at least 1 step, not 0"):
        sample(lambda x, time: x, images(1), 0)
