"""What files of diffusers have in common: keys of config.json, scheduler configurations, residual blocks."""

from collections.abc import Iterator, Mapping
from typing import Any

from configs.architectures import ScaledLinearSchedule
from mmjax.weights.published.config_values import require_values
from mmjax.weights.published.rules import Rule, linear_rules, norm_rules
from mmjax.weights.published.tensor_layouts import CONVOLUTION, LINEAR

DIFFUSERS_FILE_STEM = "diffusion_pytorch_model"
PREDICTION_TYPES = {"velocity": "v_prediction", "epsilon": "epsilon"}
"""Names of predictions in diffusers, by their names here."""

DDIM_REQUIRED_VALUES = {
    "beta_schedule": "scaled_linear",
    "clip_sample": False,
    "set_alpha_to_one": False,
    "steps_offset": 1,
    "timestep_spacing": "leading",
    "rescale_betas_zero_snr": False,
    "thresholding": False,
    "trained_betas": None,
}
"""Keys of scheduler_config.json with the only value that can be computed."""


def heads_per_level(values: Mapping[str, Any], levels: int) -> tuple[int, ...]:
    """Attention heads of each level, which U-Nets of diffusers call `attention_head_dim` by mistake."""
    heads = values.get("attention_head_dim", 8)
    return (heads,) * levels if isinstance(heads, int) else tuple(heads)


def read_scheduler(values: Mapping[str, Any]) -> ScaledLinearSchedule:
    """Reads a scheduler_config.json, of DDIM or of another scheduler for the same betas.

    Raises:
        ValueError: The schedule cannot be computed.
    """
    require_values(values, DDIM_REQUIRED_VALUES)
    predictions = {prediction_type: prediction for prediction, prediction_type in PREDICTION_TYPES.items()}
    prediction_type = values.get("prediction_type", "epsilon")
    if prediction_type not in predictions:
        raise ValueError(f"prediction_type is {prediction_type!r}; only {' and '.join(predictions)} can be computed")
    return ScaledLinearSchedule(
        timesteps=values["num_train_timesteps"],
        beta_start=values["beta_start"],
        beta_end=values["beta_end"],
        prediction=predictions[prediction_type],
    )


def write_scheduler(schedule: ScaledLinearSchedule) -> dict[str, Any]:
    """Writes the scheduler_config.json of diffusers' DDIMScheduler."""
    return {
        "_class_name": "DDIMScheduler",
        **DDIM_REQUIRED_VALUES,
        "num_train_timesteps": schedule.timesteps,
        "beta_start": schedule.beta_start,
        "beta_end": schedule.beta_end,
        "prediction_type": PREDICTION_TYPES[schedule.prediction],
    }


def residual_block_rules(tensor: str, parameter: str, *, embedding: bool, skip: bool) -> Iterator[Rule]:
    """Rules of a ResnetBlock2D.

    Args:
        tensor: Prefix of its tensors' names.
        parameter: Path of the block here.
        embedding: Whether it has an embedding of time.
        skip: Whether it changes the width, so that its skip path has a convolution.
    """
    for number, name in ((1, "first"), (2, "second")):
        yield from norm_rules(f"{tensor}.norm{number}", f"{parameter}/{name}_norm", bias=True)
        yield from linear_rules(f"{tensor}.conv{number}", f"{parameter}/{name}", CONVOLUTION, bias=True)
    if embedding:
        yield from linear_rules(f"{tensor}.time_emb_proj", f"{parameter}/embedding", LINEAR, bias=True)
    if skip:
        yield from linear_rules(f"{tensor}.conv_shortcut", f"{parameter}/skip", CONVOLUTION, bias=True)
