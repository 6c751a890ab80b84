"""Sample answers and images over time: the same held-out prompts, answered at every evaluation of a run.

They are kept in the folder `samples` of the workdir: a JSON line for each prompt in `step_000450.jsonl`, and images
as PNG files that the lines name. `mmjax.reporting.run_trainer` makes the log, and the run's page shows it.
"""

import dataclasses
import json
import logging
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from PIL import Image

from configs.common.errors import UserError
from configs.common.whole_files import write_whole
from data.media.patches import to_uint8
from mmjax.generation.held_out_prompts import HeldOutPrompt, held_out_descriptions, held_out_questions
from mmjax.generation.image_generation import ImageGenerator
from mmjax.generation.trained_model import TrainedModel, model_of_trainer
from mmjax.training.trainer import Trainer

_LOG = logging.getLogger(__name__)

SAMPLES_FOLDER = "samples"
NOT_TAKEN_FILE = "not_taken.txt"
"""File of that folder with the reason why there are no samples."""

MAX_PARAMETERS = 250_000_000
"""Models with more parameters are not sampled during training: a copy would not fit beside the training state."""

MAX_ANSWER_TOKENS = 32
SAMPLING_STEPS = 20


@dataclasses.dataclass(frozen=True)
class _Prompts:
    questions: Sequence[HeldOutPrompt]
    descriptions: Sequence[HeldOutPrompt]


class SampleLog:
    """Answers some questions and generates some images at every evaluation; a hook for `Trainer.fit(on_evaluation=…)`.

    A model without a generator makes no images, and a data set without questions gets no answers. Where nothing can be
    sampled, the reason is written to a file, and training goes on.

    Args:
        workdir: Folder of the run.
        questions: Number of questions.
        images: Number of images.
        resumed_step: The step that the run continues from; later samples of an earlier run are removed.
    """

    def __init__(self, workdir: pathlib.Path, questions: int, images: int, resumed_step: int = 0) -> None:
        self._folder = workdir / SAMPLES_FOLDER
        self._questions, self._images = questions, images
        self._prompts: _Prompts | None = None
        self._model: TrainedModel | None = None
        self._generator: ImageGenerator | None = None
        self._is_off = not questions and not images
        for path in self._folder.glob("step_*.*") if jax.process_index() == 0 else ():
            if int(path.name[5:11]) > resumed_step:
                path.unlink()

    def __call__(self, trainer: Trainer) -> None:
        """Answers the questions and generates the images with the parameters that a trainer has now.

        A file that cannot be written, because the disk is full for instance, is a warning; the next evaluation tries
        again.
        """
        try:
            self._sample(trainer)
        except OSError as error:
            _LOG.warning("no sample answers in %s after step %d: %s", self._folder, trainer.steps_done, error)

    def _sample(self, trainer: Trainer) -> None:
        if self._is_off:
            return
        if jax.process_count() > 1:
            self._turn_off("samples are taken in runs of one process only, and this one has several")
            return
        size = sum(leaf.size for leaf in jax.tree.leaves(trainer.parameters()))
        if size > MAX_PARAMETERS:
            self._turn_off(
                f"the model has {size:,} parameters; samples are taken of models with {MAX_PARAMETERS:,} at most"
            )
            return
        try:
            self._take(trainer)
        except (UserError, jax.errors.JaxRuntimeError) as error:  # training must not end for a sample
            self._turn_off(str(error).partition("\n")[0], logging.WARNING)

    def _turn_off(self, reason: str, level: int = logging.INFO) -> None:
        self._is_off = True
        _LOG.log(level, "no sample answers: %s", reason)
        if jax.process_index() == 0:
            write_whole(self._folder / NOT_TAKEN_FILE, reason + "\n")

    def _take(self, trainer: Trainer) -> None:
        model = self._update_model(model_of_trainer(trainer))
        if self._prompts is None:
            self._prompts = self._choose_prompts(trainer, model)
        if not self._prompts.questions and not self._prompts.descriptions:
            self._turn_off("the configuration has neither held-out questions to answer nor held-out images to generate")
            return
        records = [*self._answers(model, self._prompts.questions), *self._generated(model, self._prompts.descriptions)]
        path = self._folder / f"step_{model.step:06d}.jsonl"
        write_whole(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))

    def _update_model(self, newer: TrainedModel) -> TrainedModel:
        """The model with newer parameters and the programs that are compiled already."""
        if self._model is None:
            self._model = newer
        else:
            self._model.parameters, self._model.step = newer.parameters, newer.step
        return self._model

    def _choose_prompts(self, trainer: Trainer, model: TrainedModel) -> _Prompts:
        """Chooses the prompts, and writes the images that belong to them."""
        dataset = trainer.config.dataset("test")
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / NOT_TAKEN_FILE).unlink(missing_ok=True)
        arguments = (dataset, model.sample_format, model.capacity)
        prompts = _Prompts(
            held_out_questions(*arguments, self._questions), held_out_descriptions(*arguments, self._images)
        )
        for number, prompt in enumerate((*prompts.questions, *prompts.descriptions)):
            for name, image in zip(_input_files(number, prompt), prompt.images, strict=True):
                Image.fromarray(image).save(self._folder / name)
        for number, prompt in enumerate(prompts.descriptions):
            self._save(f"target_{number}.png", prompt.sample.target_images[0])
        return prompts

    def _answers(self, model: TrainedModel, prompts: Sequence[HeldOutPrompt]) -> Iterator[dict[str, Any]]:
        if not prompts:
            return
        answers = model.continue_samples([prompt.sample for prompt in prompts], max_tokens=MAX_ANSWER_TOKENS)
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            yield {
                "kind": "answer",
                "prompt": prompt.text,
                "images": _input_files(number, prompt),
                "expected": prompt.answer,
                "answer": answer.text,
                "ended": answer.ended,
            }

    def _generated(self, model: TrainedModel, prompts: Sequence[HeldOutPrompt]) -> Iterator[dict[str, Any]]:
        if not prompts:
            return
        self._generator = self._generator or ImageGenerator(model)
        samples = [prompt.sample for prompt in prompts]
        images = self._generator.generate_for_samples(samples, range(len(samples)), SAMPLING_STEPS)
        questions = len(self._prompts.questions) if self._prompts else 0
        for number, (prompt, image) in enumerate(zip(prompts, images, strict=True)):
            name = f"step_{model.step:06d}_{number}.png"
            self._save(name, image)
            yield {
                "kind": "image",
                "prompt": prompt.text,
                "images": _input_files(questions + number, prompt),
                "expected": f"target_{number}.png",
                "image": name,
            }

    def _save(self, name: str, image: np.ndarray) -> None:
        Image.fromarray(to_uint8(image)).save(self._folder / name)


def _input_files(number: int, prompt: HeldOutPrompt) -> list[str]:
    return [f"input_{number}_{place}.png" for place in range(len(prompt.images))]
