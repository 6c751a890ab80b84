"""`mmjax.load_model`, `mmjax.generate` and `mmjax.draw`: answers and images of a trained model, for programs."""

import io
import os
import pathlib
import warnings
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from PIL import Image

from data.media.images import to_uint8
from data.records import Media
from mmjax import cli
from mmjax.generation.image_generation import ImageGenerator
from mmjax.generation.sampling import Sampling
from mmjax.generation.trained_model import Prompt, TrainedModel, load_trained_model, model_of_trainer
from mmjax.training.config import TrainConfig
from mmjax.training.metrics.activity import ANSWERING, display_call
from mmjax.training.trainer import Trainer

Path = str | os.PathLike[str]
ImageInput = Path | Image.Image | np.ndarray
"""A file, a Pillow image, or uint8 pixels [height, width, 3]."""

ModelInput = Path | TrainedModel | Trainer
"""A run's workdir; a model of `load_model`, which saves loading it for every question; or a trainer."""


def load_model(workdir: Path, config: TrainConfig | None = None, step: int | None = None) -> TrainedModel:
    """Loads the model of a run's newest whole checkpoint, or of a given step's, onto this process's first device.

    Args:
        workdir: Workdir of the run.
        config: Configuration of the run; by default the one that `python -m mmjax.train` wrote to the workdir.
        step: Take this step's checkpoint and no other.

    Raises:
        UserError: The workdir has no such checkpoint, or the configuration is another model's.
    """
    folder = pathlib.Path(workdir)
    return load_trained_model(folder, config or cli.run_config(folder), step)


def generate(
    model: ModelInput,
    prompt: str = "",
    image: ImageInput | Sequence[ImageInput] = (),
    audio: Path | Sequence[Path] = (),
    video: Path | Sequence[Path] = (),
    *,
    items: Mapping[str, Path | Sequence[Path]] | None = None,
    seed: int = 0,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    max_tokens: int | None = None,
    stop: str | Sequence[str] = (),
) -> str:
    """Returns a trained model's answer to a question about images and other media.

        mmjax.generate("runs/short", "what color is the shape?", image="shape.png")

    Args:
        model: A run's workdir, a model of `load_model`, or a trainer.
        prompt: Text, with placeholders such as `<image>` where media stand; media without any come first.
        image: One image or several, in the order of their placeholders `<image>`.
        audio: One audio file or several, in the order of their placeholders `<audio>`.
        video: One video file or several, in the order of their placeholders `<video>`.
        items: One file or several, by field of an encoder of another kind, such as `windows` for `<windows>`.
        seed: Seed of sampled tokens.
        temperature: Sampling temperature; 0 for the most likely tokens.
        top_p: Nucleus sampling: probability of the candidate tokens together; 1 for all.
        top_k: Number of the most likely tokens that are candidates; 0 for all.
        min_p: Least share of the most likely token's probability that a candidate has; 0 for all.
        repetition_penalty: Divisor of the positive logits of tokens that prompt or answer have already, and factor of
            their negative logits; 1 for none.
        max_tokens: Largest number of tokens of the answer; None for as many as a row has room for.
        stop: One text or several, at the first of which the answer ends.

    Raises:
        UserError: There is no such model or file, the model has no encoder of a field, or the prompt is longer than a
            row.
    """
    media = {field: _file_media(files) for field, files in (items or {}).items()}
    media |= {
        "image": tuple(_image_media(one) for one in _as_tuple(image)),
        "audio": _file_media(audio),
        "video": _file_media(video),
    }
    sampling = Sampling(temperature, top_p, top_k, min_p, repetition_penalty)
    with display_call() as display:
        display.show(ANSWERING, 0, 1)
        (answer,) = _as_model(model).answers(
            [Prompt(prompt, media, seed)], sampling, max_tokens, (stop,) if isinstance(stop, str) else stop
        )
    return answer.text


def draw(
    model: ModelInput, description: str, *, seed: int = 0, sampling_steps: int = 50, guidance: float = 1.0
) -> Image.Image:
    """Returns the image that a trained model generates from a description.

        mmjax.draw("runs/short", "a blue circle")

    Args:
        model: A run's workdir, a model of `load_model`, or a trainer.
        description: Description of the image.
        seed: Seed of its noise.
        sampling_steps: Number of steps of DDIM.
        guidance: Scale of classifier-free guidance; 1 for none.

    Raises:
        UserError: There is no such model, or it has no generator.

    Warns:
        UserWarning: The generator was trained on too few images to draw more than noise.
    """
    with display_call() as display:
        display.show(ANSWERING, 0, 1)
        trained = _as_model(model)
        (pixels,) = ImageGenerator(trained).generate([description], [seed], sampling_steps, guidance)
    if trained.drawing_warning:
        warnings.warn(trained.drawing_warning, stacklevel=2)
    return Image.fromarray(to_uint8(np.asarray(jax.device_get(pixels))))


def _as_model(model: ModelInput) -> TrainedModel:
    if isinstance(model, Trainer):
        return model_of_trainer(model)
    return model if isinstance(model, TrainedModel) else load_model(model)


def _as_tuple(value: ImageInput | Sequence[ImageInput]) -> tuple[ImageInput, ...]:
    """One input or several as a tuple; an array is one image."""
    if isinstance(value, str | os.PathLike | Image.Image | np.ndarray):
        return (value,)
    return tuple(value)


def _file_media(files: Path | Sequence[Path]) -> tuple[Media, ...]:
    return tuple(map(Media.from_file, [files] if isinstance(files, str | os.PathLike) else files))


def _image_media(image: ImageInput) -> Media:
    """An image as encoded bytes, which keep its pixels."""
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    if not isinstance(image, Image.Image):
        return Media.from_file(image)
    encoded = io.BytesIO()
    image.save(encoded, format="PNG")
    return Media(where="an image of the program", content=encoded.getvalue())
