"""Requests to a trained model: one from the command line, or many from a JSONL file."""

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from PIL import Image

from configs.errors import UserError
from data.datasets.prompts import prompt_record
from data.media.images import save_image
from data.records import Media
from mmjax.generation.image_generation import ImageGenerator
from mmjax.generation.sampling import Sampling
from mmjax.generation.trained_model import Answer, Prompt, TrainedModel

LARGEST_SEED = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Request:
    """A question, or with `output` a description of a picture to draw.

    Attributes:
        prompt: Its text, with `<image>` and `<audio>` where pictures and clips stand.
        image, audio: Files, in the order of the marks.
        output: File to draw into; empty for a question.
        seed: Keys the noise of a picture, and tokens that are drawn at random.
    """

    prompt: str
    image: tuple[str, ...] = ()
    audio: tuple[str, ...] = ()
    output: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= LARGEST_SEED:
            raise UserError(f"seed {self.seed} is not between 0 and {LARGEST_SEED}")
        prompt_record(self.prompt, *self._media)
        if self.output:
            self._check_output()
        for path in (*self.image, *self.audio):
            if not pathlib.Path(path).is_file():
                raise UserError(f"there is no file {path}")

    @property
    def _media(self) -> tuple[tuple[Media, ...], tuple[Media, ...]]:
        return tuple(map(Media.from_file, self.image)), tuple(map(Media.from_file, self.audio))

    @property
    def question(self) -> Prompt:
        """What the model is asked."""
        return Prompt(self.prompt, *self._media, self.seed)

    def _check_output(self) -> None:
        """Where to draw; found out before the model is loaded, not after."""
        if self.image or self.audio:
            raise UserError("pictures and clips are asked about, an output is drawn: give one, and ask twice for both")
        output = pathlib.Path(self.output)
        suffixes = Image.registered_extensions()
        if suffixes.get(output.suffix.lower()) not in Image.SAVE:
            raise UserError(f"output {output}: no picture format has the suffix {output.suffix!r}; use .png")
        if not output.absolute().parent.is_dir():
            raise UserError(f"output {output}: there is no folder {output.parent}; make it first")


def read_requests(path: pathlib.Path) -> list[Request]:
    """A request a line, `{"prompt": ..., "image": [...], "audio": [...], "output": ..., "seed": ...}`.

    All but the prompt may be left out, and one file needs no list.

    Raises:
        UserError: A line is none, with the file and the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    requests = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                requests.append(_request(json.loads(line)))
            except (UserError, ValueError, TypeError) as error:
                raise UserError(f"{path}:{number}: {error}") from error
    if not requests:
        raise UserError(f"{path} holds no request; write one a line, such as {json.dumps({'prompt': 'a question'})}")
    return requests


def _request(fields: Any) -> Request:
    known = {field.name for field in dataclasses.fields(Request)}
    if not isinstance(fields, dict) or not isinstance(fields.get("prompt"), str):
        raise UserError("a request is an object with a text as prompt")
    if unknown := sorted(set(fields) - known):
        raise UserError(f"a request has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    listed = {
        name: (fields[name],) if isinstance(fields[name], str) else tuple(map(str, fields[name]))
        for name in ("image", "audio")
        if name in fields
    }
    return Request(**{**fields, **listed})


@dataclasses.dataclass(frozen=True)
class GenerationSettings:
    """How requests are served.

    Attributes:
        sampling: How tokens are chosen.
        most: Tokens of an answer at most; 0 for as many as a row has room for.
        steps, guidance: Of a picture.
        together: Requests that are computed at once.
    """

    sampling: Sampling
    max_tokens: int = 0
    sampling_steps: int = 50
    guidance: float = 1.0
    batch_size: int = 8


def serve_requests(
    model: TrainedModel, requests: Sequence[Request], settings: GenerationSettings
) -> Iterator[dict[str, Any]]:
    """What came of every request, in order: the request, and `answer` and `ended`, or the file drawn as `output`."""
    drawer = ImageGenerator(model) if any(request.output for request in requests) else None
    for first in range(0, len(requests), settings.batch_size):
        group = requests[first : first + settings.batch_size]
        questions = [request for request in group if not request.output]
        descriptions = [request for request in group if request.output]
        answers = iter(_answered(model, questions, settings))
        pictures = iter(_drawn(drawer, descriptions, settings)) if drawer else iter(())
        for request in group:
            if request.output:
                save_image(pathlib.Path(request.output), next(pictures))
                yield {"prompt": request.prompt, "output": request.output}
            else:
                answer = next(answers)
                yield {"prompt": request.prompt, "answer": answer.text, "ended": answer.ended}


def _answered(model: TrainedModel, questions: Sequence[Request], settings: GenerationSettings) -> list[Answer]:
    if not questions:
        return []
    return model.answers([each.question for each in questions], settings.sampling, settings.max_tokens or None)


def _drawn(drawer: ImageGenerator, descriptions: Sequence[Request], settings: GenerationSettings) -> list:
    if not descriptions:
        return []
    texts, seeds = zip(*((each.prompt, each.seed) for each in descriptions), strict=True)
    return list(drawer.generate(texts, seeds, settings.sampling_steps, settings.guidance))
