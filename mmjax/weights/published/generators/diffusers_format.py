"""What config.json files of diffusers have in common, and its schedulers."""

from collections.abc import Mapping
from typing import Any

from configs.architectures import ScaledLinearSchedule

DIFFUSERS_FILE_STEM = "diffusion_pytorch_model"
PREDICTIONS = {"velocity": "v_prediction", "epsilon": "epsilon"}

# What our DDIM does and no other: keys of scheduler_config.json with their only value.
FIXED_DDIM = {
    "beta_schedule": "scaled_linear",
    "clip_sample": False,
    "set_alpha_to_one": False,
    "steps_offset": 1,
    "timestep_spacing": "leading",
    "rescale_betas_zero_snr": False,
    "thresholding": False,
    "trained_betas": None,
}


def require_fixed(values: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Raises ValueError for a key whose value is not the only one that can be computed."""
    for key, only in fixed.items():
        if values.get(key, only) != only:
            raise ValueError(f"{key} is {values[key]!r}; only {only!r} can be computed")


def require_equal(values: Mapping[str, Any], *pairs: tuple[str, str]) -> None:
    """Raises ValueError for two keys whose values differ."""
    for one, other in pairs:
        if values[one] != values[other]:
            raise ValueError(f"{one} is {values[one]} and {other} is {values[other]}; only equal ones can be computed")


def heads_per_level(values: Mapping[str, Any], levels: int) -> tuple[int, ...]:
    """Attention heads of each resolution, which U-Nets call `attention_head_dim` by mistake."""
    heads = values.get("attention_head_dim", 8)
    return (heads,) * levels if isinstance(heads, int) else tuple(heads)


def read_scheduler(values: Mapping[str, Any]) -> ScaledLinearSchedule:
    """Of a scheduler_config.json: of DDIM, or of a scheduler for the same betas.

    Raises:
        ValueError: We can't compute it.
    """
    require_fixed(values, FIXED_DDIM)
    predictions = {theirs: ours for ours, theirs in PREDICTIONS.items()}
    prediction = values.get("prediction_type", "epsilon")
    if prediction not in predictions:
        raise ValueError(f"prediction_type is {prediction!r}; only {' and '.join(predictions)} can be computed")
    return ScaledLinearSchedule(
        timesteps=values["num_train_timesteps"],
        beta_start=values["beta_start"],
        beta_end=values["beta_end"],
        prediction=predictions[prediction],
    )


def write_scheduler(schedule: ScaledLinearSchedule) -> dict[str, Any]:
    """For diffusers' DDIMScheduler."""
    return {
        "_class_name": "DDIMScheduler",
        **FIXED_DDIM,
        "num_train_timesteps": schedule.timesteps,
        "beta_start": schedule.beta_start,
        "beta_end": schedule.beta_end,
        "prediction_type": PREDICTIONS[schedule.prediction],
    }
