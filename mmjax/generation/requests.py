"""Requests to a trained model, one from the command line or many from a JSONL file, and serving them in batches.

The command `mmjax.generate` calls it.
"""

import dataclasses
import itertools
import json
import pathlib
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from configs.common.checks import annotations_of, conforms, wrong_type
from configs.common.errors import UserError
from configs.common.strict_json import parse_json, read_bounded
from data.datasets.prompts import prompt_record
from data.media.images import save_image
from data.records import MEDIA_PARTS, Media
from mmjax.generation.image_generation import ImageGenerator
from mmjax.generation.sampling import Sampling
from mmjax.generation.trained_model import Answer, Prompt, TrainedModel

MAX_SEED = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """A question, or with `output` a description of an image to generate.

    Attributes:
        prompt: Text, with placeholders such as `<image>` where media stand.
        image: Image files in the order of their placeholders.
        audio: Audio files in the order of their placeholders.
        video: Video files in the order of their placeholders.
        items: Files in the order of placeholders, by field of an encoder of another kind (`EncoderConfig.field`).
        output: File to write the generated image to; empty for a question.
        seed: Seed of an image's noise, and of tokens that are sampled.
    """

    prompt: str
    image: tuple[str, ...] = ()
    audio: tuple[str, ...] = ()
    video: tuple[str, ...] = ()
    items: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    output: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise UserError(f"seed {self.seed} is not between 0 and {MAX_SEED}")
        if reserved := [field for field in self.items if field in MEDIA_PARTS]:
            raise UserError(f"items are files of encoders of other kinds; give {reserved[0]} beside them, not in them")
        prompt_record(self.prompt, self._media)  # raises if placeholders and files do not match
        if self.output:
            self._check_output()
        for path in itertools.chain.from_iterable(self._files.values()):
            if not pathlib.Path(path).is_file():
                raise UserError(f"there is no file {path}")

    @property
    def _files(self) -> dict[str, tuple[str, ...]]:
        return {**{name: getattr(self, name) for name in MEDIA_PARTS}, **self.items}

    @property
    def _media(self) -> dict[str, tuple[Media, ...]]:
        return {name: tuple(map(Media.from_file, files)) for name, files in self._files.items()}

    @property
    def question(self) -> Prompt:
        """Returns the prompt of the request."""
        return Prompt(self.prompt, self._media, self.seed)

    def _check_output(self) -> None:
        """Raises UserError for an output that could not be written, before the model is loaded."""
        if any(self._files.values()):
            raise UserError(
                "a request with media is a question, one with an output a description of an image; make two requests "
                "for both"
            )
        output = pathlib.Path(self.output)
        formats = Image.registered_extensions()
        if formats.get(output.suffix.lower()) not in Image.SAVE:
            raise UserError(f"output {output}: no image format has the suffix {output.suffix!r}; use .png")
        if not output.absolute().parent.is_dir():
            raise UserError(f"output {output}: there is no folder {output.parent}; create it first")


def read_requests(path: pathlib.Path) -> list[Request]:
    """Reads a JSONL file of requests.

    A line is `{"prompt": ..., "image": [...], "audio": [...], "video": [...], "items": {FIELD: [...]}, "output": ...,
    "seed": ...}`. Everything but the prompt may be left out, and a single file needs no list.

    Raises:
        UserError: A line is not a request; the message names the file and the line.
    """
    requests = []
    for number, line in enumerate(read_bounded(path).splitlines(), start=1):
        if line.strip():
            where = f"{path}:{number}"
            values = parse_json(line, where)
            try:
                requests.append(_parse_request(values))
            except (UserError, ValueError, TypeError, OSError) as error:
                message = " ".join(str(error).split())  # a name in it may hold line breaks
                raise UserError(f"{where}: {message}") from error
    if not requests:
        raise UserError(f"{path} holds no request; write one a line, such as {json.dumps({'prompt': 'a question'})}")
    return requests


def _parse_request(values: Any) -> Request:
    known = {field.name for field in dataclasses.fields(Request)}
    if not isinstance(values, dict) or not isinstance(values.get("prompt"), str):
        raise UserError("a request is an object with a text as prompt")
    if unknown := sorted(set(values) - known):
        raise UserError(f"a request has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    files: dict[str, Any] = {name: _file_names(values[name]) for name in MEDIA_PARTS if name in values}
    if "items" in values:
        if not isinstance(values["items"], dict):
            raise UserError(
                f"items is {reprlib.repr(values['items'])}; it must be an object of files by field of their encoder"
            )
        files["items"] = {field: _file_names(item_files) for field, item_files in values["items"].items()}
    fields = {**values, **files}
    annotations = annotations_of(Request)
    for name, value in fields.items():
        if not conforms(value, annotations[name]):
            raise UserError(wrong_type(name, reprlib.repr(value), annotations[name]))
    return Request(**fields)


def _file_names(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(str, value))


@dataclasses.dataclass(frozen=True)
class GenerationSettings:
    """Settings with which requests are served.

    Attributes:
        sampling: Settings of the choice of tokens.
        max_tokens: Largest number of tokens of an answer; 0 for as many as a row has room for.
        stop: Texts at the first of which an answer ends.
        sampling_steps: DDIM steps of an image.
        guidance: Scale of classifier-free guidance of an image.
        batch_size: Number of requests that are computed at once.
    """

    sampling: Sampling
    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    sampling_steps: int = 50
    guidance: float = 1.0
    batch_size: int = 8


def serve_requests(
    model: TrainedModel, requests: Sequence[Request], settings: GenerationSettings
) -> Iterator[dict[str, Any]]:
    """Serves requests and yields a result for each, in their order.

    A result has the `prompt`, and `answer` and `ended` of a question, or the `output` file of a description.
    """
    generator = ImageGenerator(model) if any(request.output for request in requests) else None
    for first in range(0, len(requests), settings.batch_size):
        batch = requests[first : first + settings.batch_size]
        answers = iter(_answer([request for request in batch if not request.output], model, settings))
        images = iter(_generate([request for request in batch if request.output], generator, settings))
        for request in batch:
            if request.output:
                save_image(pathlib.Path(request.output), next(images))
                yield {"prompt": request.prompt, "output": request.output}
            else:
                answer = next(answers)
                yield {"prompt": request.prompt, "answer": answer.text, "ended": answer.ended}


def _answer(questions: Sequence[Request], model: TrainedModel, settings: GenerationSettings) -> list[Answer]:
    if not questions:
        return []
    prompts = [request.question for request in questions]
    return model.answers(prompts, settings.sampling, settings.max_tokens or None, settings.stop)


def _generate(
    descriptions: Sequence[Request], generator: ImageGenerator | None, settings: GenerationSettings
) -> Iterable[np.ndarray]:
    if not descriptions or generator is None:
        return []
    prompts, seeds = [request.prompt for request in descriptions], [request.seed for request in descriptions]
    return generator.generate(prompts, seeds, settings.sampling_steps, settings.guidance)
