"""Noise schedules: squared scales sum to one, DDIM times, and equality with diffusers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import CosineSchedule, RectifiedFlowSchedule, ScaledLinearSchedule
from mmjax.models.modalities.generators.diffusion import ddim_sample
from mmjax.models.modalities.generators.noise_schedules import noise_schedule
from tests.mmjax.models.modalities.generators.diffusers_scheduler import ddim_scheduler

SCHEDULES = {
    "cosine": CosineSchedule(),
    "stable diffusion": ScaledLinearSchedule(),
    "audioldm": ScaledLinearSchedule(beta_start=0.0015, beta_end=0.0195, prediction="epsilon"),
}


@pytest.mark.parametrize("config", SCHEDULES.values(), ids=SCHEDULES)
def test_signal_decreases_and_squared_scales_sum_to_one(config):
    time = jnp.arange(0.0, 1000.0, 37.0)
    signal, noise = noise_schedule(config).signal_and_noise(time)
    np.testing.assert_allclose(np.square(signal) + np.square(noise), np.ones(len(time)), rtol=1e-6)
    assert np.all(np.diff(signal) < 0) and signal[0] > 0.999 and signal[-1] < 0.1


@pytest.mark.parametrize("config", SCHEDULES.values(), ids=SCHEDULES)
def test_training_times_are_uniform(config):
    draw = jax.jit(jax.vmap(noise_schedule(config).sample_time))
    times = np.asarray(draw(jax.random.split(jax.random.key(0), 4000)))
    counts, _ = np.histogram(times, bins=8, range=(0, 1000))
    assert times.min() >= 0 and times.max() < 1000 and np.all(np.abs(counts - 500) < 100)
    assert isinstance(config, CosineSchedule) or np.all(times == np.round(times))


def test_ddim_times_of_the_cosine_schedule_are_even_and_reach_both_ends():
    np.testing.assert_allclose(noise_schedule(CosineSchedule()).sampling_times(4), [1000, 750, 500, 250, 0])


FLOW = RectifiedFlowSchedule(logit_mean=0.5, logit_std=0.8, shift=3.0)


def test_scales_of_a_rectified_flow_sum_to_one_and_its_times_reach_both_ends():
    schedule, time = noise_schedule(FLOW), jnp.arange(0.0, 1001.0, 50.0)
    signal, noise = schedule.signal_and_noise(time)
    np.testing.assert_allclose(signal + noise, np.ones(len(time)), rtol=1e-6)
    np.testing.assert_allclose(noise, time / 1000, rtol=1e-6)
    np.testing.assert_allclose(schedule.sampling_times(2), [1000, 750, 0])  # 3 / 2 / (1 + 2 / 2)
    np.testing.assert_allclose(noise_schedule(RectifiedFlowSchedule()).sampling_times(4), [1000, 750, 500, 250, 0])


def test_training_times_of_a_rectified_flow_are_logit_normal_after_the_shift_is_taken_back():
    draw = jax.jit(jax.vmap(noise_schedule(FLOW).sample_time))
    shifted = np.asarray(draw(jax.random.split(jax.random.key(0), 4000)), float) / 1000
    time = shifted / (3.0 - 2.0 * shifted)
    logits = np.log(time / (1 - time))
    np.testing.assert_allclose([logits.mean(), logits.std()], [0.5, 0.8], atol=0.03)
    uniform = noise_schedule(RectifiedFlowSchedule(logit_std=0.0))
    counts, _ = np.histogram(jax.vmap(uniform.sample_time)(jax.random.split(jax.random.key(0), 4000)), 8, (0, 1000))
    assert np.all(np.abs(counts - 500) < 100)


def test_more_ddim_steps_than_times_are_refused():
    with pytest.raises(ValueError, match="more than the 10 time steps"):
        noise_schedule(ScaledLinearSchedule(timesteps=10)).sampling_times(10)


def test_an_unregistered_configuration_is_refused_by_its_type():
    with pytest.raises(TypeError, match="from a int; register one"):
        noise_schedule(3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"timesteps": 0}, "timesteps is 0"),
        ({"beta_start": 0.5, "beta_end": 0.1}, "in this order"),
        ({"prediction": "sample"}, "prediction is 'sample'; choose from velocity, epsilon"),
    ],
)
def test_invalid_schedules_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        ScaledLinearSchedule(**changed)


@pytest.mark.parametrize(("changed", "message"), [({"shift": 0.0}, "shift is 0.0"), ({"logit_std": -1.0}, "-1.0")])
def test_invalid_rectified_flows_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        RectifiedFlowSchedule(**changed)


# ---------------------------------------------------------------- diffusers


@pytest.mark.parity
@pytest.mark.parametrize("name", ["stable diffusion", "audioldm"])
def test_scales_match_diffusers(name):
    scheduler = ddim_scheduler(SCHEDULES[name])
    signal, noise = noise_schedule(SCHEDULES[name]).signal_and_noise(jnp.arange(1000.0))
    squares = scheduler.alphas_cumprod.numpy()
    np.testing.assert_allclose(signal, np.sqrt(squares), atol=1e-5)
    np.testing.assert_allclose(noise, np.sqrt(1 - squares), atol=1e-5)


@pytest.mark.parity
@pytest.mark.parametrize("steps", [1, 7, 50])
@pytest.mark.parametrize("name", ["stable diffusion", "audioldm"])
def test_ddim_times_and_images_match_diffusers(name, steps):
    torch = pytest.importorskip("torch")
    scheduler = ddim_scheduler(SCHEDULES[name])
    scheduler.set_timesteps(steps)
    schedule = noise_schedule(SCHEDULES[name])
    np.testing.assert_array_equal(schedule.sampling_times(steps)[:-1], scheduler.timesteps.numpy())

    noise = np.random.default_rng(0).normal(size=(2, 4, 2, 3)).astype(np.float32)
    theirs = torch.from_numpy(noise)
    for time in scheduler.timesteps:  # the prediction follows image and time, so that a wrong one shows
        theirs = scheduler.step(torch.cos(theirs) * (1 - time / 2000), time, theirs).prev_sample

    def predict(x, time):
        return jnp.cos(x) * (1 - time / 2000)[:, None, None, None]

    ours = jax.jit(lambda noise: ddim_sample(schedule, predict, noise, steps, clip=False))(noise)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parity
@pytest.mark.parametrize("steps", [1, 7])
def test_images_of_a_rectified_flow_match_diffusers(steps):
    torch, diffusers = pytest.importorskip("torch"), pytest.importorskip("diffusers")
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1.0 / steps, steps).tolist())
    schedule = noise_schedule(FLOW)
    np.testing.assert_allclose(schedule.sampling_times(steps)[:-1], scheduler.timesteps.numpy(), rtol=1e-6)
    noise = np.random.default_rng(0).normal(size=(2, 4, 2, 3)).astype(np.float32)
    theirs = torch.from_numpy(noise)
    for time in scheduler.timesteps:
        theirs = scheduler.step(torch.cos(theirs) * (1 - time / 2000), time, theirs).prev_sample

    def predict(x, time):
        return jnp.cos(x) * (1 - time / 2000)[:, None, None, None]

    ours = jax.jit(lambda noise: ddim_sample(schedule, predict, noise, steps, clip=False))(noise)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-5)
