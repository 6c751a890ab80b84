"""Noise schedules: squared scales sum to one, DDIM times, and equality with diffusers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import CosineSchedule, ScaledLinearSchedule
from mmjax.models.modalities.diffusion import ddim_sample
from mmjax.models.modalities.noise_schedules import noise_schedule
from mmjax.weights.published.generators.diffusers_format import read_scheduler, write_scheduler

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
    np.testing.assert_allclose(noise_schedule(CosineSchedule()).ddim_times(4), [1000, 750, 500, 250, 0])


def test_more_ddim_steps_than_times_are_refused():
    with pytest.raises(ValueError, match="more than the 10 time steps"):
        noise_schedule(ScaledLinearSchedule(timesteps=10)).ddim_times(10)


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


# ---------------------------------------------------------------- diffusers


def their_scheduler(config):
    diffusers = pytest.importorskip("diffusers")
    return diffusers.DDIMScheduler.from_config(write_scheduler(config))


@pytest.mark.parametrize("name", ["stable diffusion", "audioldm"])
def test_scales_and_configuration_match_diffusers(name):
    scheduler = their_scheduler(SCHEDULES[name])
    signal, noise = noise_schedule(SCHEDULES[name]).signal_and_noise(jnp.arange(1000.0))
    squares = scheduler.alphas_cumprod.numpy()
    np.testing.assert_allclose(signal, np.sqrt(squares), atol=1e-5)
    np.testing.assert_allclose(noise, np.sqrt(1 - squares), atol=1e-5)
    assert read_scheduler(dict(scheduler.config)) == SCHEDULES[name]


@pytest.mark.parametrize("steps", [1, 7, 50])
@pytest.mark.parametrize("name", ["stable diffusion", "audioldm"])
def test_ddim_times_and_images_match_diffusers(name, steps):
    torch = pytest.importorskip("torch")
    scheduler = their_scheduler(SCHEDULES[name])
    scheduler.set_timesteps(steps)
    schedule = noise_schedule(SCHEDULES[name])
    np.testing.assert_array_equal(schedule.ddim_times(steps)[:-1], scheduler.timesteps.numpy())

    noise = np.random.default_rng(0).normal(size=(2, 4, 2, 3)).astype(np.float32)
    theirs = torch.from_numpy(noise)
    for time in scheduler.timesteps:  # the prediction follows image and time, so that a wrong one shows
        theirs = scheduler.step(torch.cos(theirs) * (1 - time / 2000), time, theirs).prev_sample

    def predict(x, time):
        return jnp.cos(x) * (1 - time / 2000)[:, None, None, None]

    ours = jax.jit(lambda noise: ddim_sample(schedule, predict, noise, steps, clip=False))(noise)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"beta_schedule": "linear"}, "beta_schedule is 'linear'"),
        ({"prediction_type": "sample"}, "prediction_type is 'sample'"),
        ({"set_alpha_to_one": True}, "set_alpha_to_one is True"),
    ],
)
def test_unsupported_schedulers_are_refused_by_key(changed, message):
    with pytest.raises(ValueError, match=message):
        read_scheduler(write_scheduler(ScaledLinearSchedule()) | changed)
