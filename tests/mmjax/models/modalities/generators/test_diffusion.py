"""Diffusion: identities of targets, random keys, DDIM with the true prediction, and guidance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import CosineSchedule, RectifiedFlowSchedule, ScaledLinearSchedule
from mmjax.models.modalities.generators.diffusion import (
    add_noise,
    classifier_free_guidance,
    ddim_sample,
    drop_conditions,
    image_and_noise,
    sample_keys,
    standard_normals,
)
from mmjax.models.modalities.generators.noise_schedules import noise_schedule

COSINE = noise_schedule(CosineSchedule())
SCHEDULES = {
    "cosine": COSINE,
    "velocity": noise_schedule(ScaledLinearSchedule()),
    "epsilon": noise_schedule(ScaledLinearSchedule(prediction="epsilon")),
    "flow": noise_schedule(RectifiedFlowSchedule(shift=2.0)),
}


def images(seed, count=4):
    return jnp.asarray(np.random.default_rng(seed).uniform(-1, 1, (count, 4, 4, 3)), jnp.float32)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_the_true_prediction_recovers_image_and_noise(schedule):
    clean, noise, time = images(0), images(1), jnp.array([0.0, 300.0, 700.0, 999.0])
    mixed, target = add_noise(schedule, clean, noise, time)
    image, recovered_noise = image_and_noise(schedule, mixed, target, time)
    np.testing.assert_allclose(image, clean, atol=1e-5)
    np.testing.assert_allclose(recovered_noise, noise, atol=1e-5)
    np.testing.assert_allclose(mixed[0], clean[0], atol=0.05)


def test_the_epsilon_target_is_the_noise():
    np.testing.assert_array_equal(add_noise(SCHEDULES["epsilon"], images(0), images(1), jnp.full(4, 9.0))[1], images(1))


def test_the_velocity_target_is_the_derivative_by_the_angle():
    clean, noise, time = images(0, 1), images(1, 1), jnp.array([400.0])
    step = 10.0
    ahead, behind = (add_noise(COSINE, clean, noise, time + offset)[0] for offset in (step, -step))
    slope = (ahead - behind) / (2 * step / 1000 * np.float32(np.pi / 2))
    np.testing.assert_allclose(slope, add_noise(COSINE, clean, noise, time)[1], atol=1e-3)


# ---------------------------------------------------------------- randomness


@jax.jit
def drawn(seed_and_step, samples):
    return standard_normals(sample_keys(seed_and_step, samples, 1), (2, 2, 1))


def test_random_keys_depend_on_seed_step_sample_and_purpose_alone():
    samples, moved = jnp.array([11, 12, 13, 14, 15]), jnp.array([13, 99, 98, 97, 11])
    noise = drawn(jnp.array([3, 5]), samples)
    np.testing.assert_array_equal(drawn(jnp.array([3, 5]), moved)[jnp.array([4, 0])], noise[jnp.array([0, 2])])
    for other in ([4, 5], [3, 6]):
        assert not np.any(drawn(jnp.array(other), samples) == noise)
    assert not np.any(standard_normals(sample_keys(jnp.array([3, 5]), samples, 2), (2, 2, 1)) == noise)
    assert len(set(noise.ravel().tolist())) == 20


def test_noise_is_standard_normal():
    noise = drawn(jnp.array([0, 0]), jnp.arange(2000))
    np.testing.assert_allclose([jnp.mean(noise), jnp.std(noise)], [0, 1], atol=0.03)


def test_drop_conditions_zeroes_all_conditions_of_an_image_at_the_given_rate():
    keys = sample_keys(jnp.array([0, 0]), jnp.arange(2000), 3)
    left = np.asarray(drop_conditions(jnp.ones((2000, 2, 3)), keys, 0.1))
    dropped = left.max(axis=(1, 2)) == 0
    assert np.all(left[~dropped] == 1) and 0.08 < dropped.mean() < 0.12


# ---------------------------------------------------------------- sampling


@pytest.mark.parametrize(
    ("name", "steps"),
    [("cosine", 1), ("cosine", 20), ("velocity", 2), ("velocity", 20), ("epsilon", 20), ("flow", 1), ("flow", 20)],
)
def test_ddim_with_the_true_prediction_recovers_the_image(name, steps):
    schedule, clean = SCHEDULES[name], images(0)

    def predict(x, time):
        """The prediction at x of the path that ends in the clean image."""
        signal, share = (level[:, None, None, None] for level in schedule.signal_and_noise(time))
        noise = (x - signal * clean) / share
        velocity = noise - clean if schedule.prediction == "flow" else signal * noise - share * clean
        return noise if schedule.prediction == "epsilon" else velocity

    made = jax.jit(lambda noise: ddim_sample(schedule, predict, noise, steps, clip=True))(images(1))
    left = schedule.signal_and_noise(jnp.zeros(1))[1]  # the first whole time step still has a little noise
    np.testing.assert_allclose(made, clean, atol=1e-3 + 3 * float(left[0]))


def test_ddim_clips_pixels_but_not_latents():
    def predict(x, time):
        return -100 * jnp.ones_like(x)

    np.testing.assert_allclose(ddim_sample(COSINE, predict, images(1), 3, clip=True), np.ones((4, 4, 4, 3)), atol=1e-4)
    assert np.max(ddim_sample(COSINE, predict, images(1), 3, clip=False)) > 10


def test_ddim_refuses_zero_steps():
    with pytest.raises(ValueError, match="at least 1 step, not 0"):
        ddim_sample(COSINE, lambda x, time: x, images(1), 0, clip=True)


def test_guidance_extrapolates_from_the_unconditional_prediction():
    def predict(x, time, conditions):
        return x * time[:, None, None, None] + jnp.sum(conditions, axis=(1, 2))[:, None, None, None]

    x, time, conditions = images(0), jnp.arange(4.0), jnp.arange(24.0).reshape(4, 2, 3)
    alone, none = predict(x, time, conditions), predict(x, time, jnp.zeros((4, 2, 3)))
    np.testing.assert_allclose(classifier_free_guidance(predict, conditions, 1.0)(x, time), alone)
    np.testing.assert_allclose(
        classifier_free_guidance(predict, conditions, 3.0)(x, time), none + 3 * (alone - none), rtol=1e-5
    )
