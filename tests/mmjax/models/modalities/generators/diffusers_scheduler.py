"""The scheduler of diffusers that is a noise schedule of ours."""

from typing import Any

import pytest

from configs.architectures import ScaledLinearSchedule

_PREDICTION_TYPES = {"velocity": "v_prediction", "epsilon": "epsilon"}


def ddim_scheduler(schedule: ScaledLinearSchedule) -> Any:
    """Their DDIMScheduler; skips the test without diffusers."""
    diffusers = pytest.importorskip("diffusers")
    return diffusers.DDIMScheduler(
        num_train_timesteps=schedule.timesteps,
        beta_start=schedule.beta_start,
        beta_end=schedule.beta_end,
        beta_schedule="scaled_linear",
        prediction_type=_PREDICTION_TYPES[schedule.prediction],
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )
