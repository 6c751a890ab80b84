"""`python -m mmjax.generate`: asks a trained model about images and audio clips, or lets it generate images."""

import json
import pathlib
import sys
from typing import TYPE_CHECKING

from absl import flags

from mmjax import cli

if TYPE_CHECKING:  # these import jax
    from mmjax.generation.requests import Request

_WORKDIR = flags.DEFINE_string("workdir", "", "Workdir of python -m mmjax.train; its newest checkpoint is used.")
_PROMPT = flags.DEFINE_string(
    "prompt", "", "Question, with <image> and <audio> where they stand; with --output, description of an image."
)
_IMAGE = flags.DEFINE_multi_string(
    "image", [], "Image file that the question is about; several in the order of their placeholders."
)
_AUDIO = flags.DEFINE_multi_string(
    "audio", [], "Audio file that the question is about; several in the order of their placeholders."
)
_OUTPUT = flags.DEFINE_string("output", "", "File to write a generated image to; its suffix gives the format.")
_REQUESTS = flags.DEFINE_string(
    "requests",
    "",
    'JSONL file of many requests: {"prompt": ..., "image": [...], "audio": [...], "output": ..., "seed": ...}.',
)
_TEMPERATURE = flags.DEFINE_float("temperature", 0.0, "Sampling temperature; 0 for the most likely tokens.")
_TOP_P = flags.DEFINE_float("top_p", 1.0, "Nucleus sampling: probability of the candidate tokens together; 1 for all.")
_MAX_TOKENS = flags.DEFINE_integer(
    "max_tokens", 0, "Tokens of an answer at most; 0 for as many as a row has room for.", lower_bound=0
)
_SAMPLING_STEPS = flags.DEFINE_integer("sampling_steps", 50, "DDIM steps of an image.", lower_bound=1)
_GUIDANCE = flags.DEFINE_float("guidance", 1.0, "Scale of classifier-free guidance; 1 for none.", lower_bound=0.0)
_SEED = flags.DEFINE_integer(
    "seed", 0, "Seed of an image's noise and of sampled tokens.", lower_bound=0, upper_bound=2**31 - 1
)


def main() -> int:
    """Prints the answer alone on stdout, or writes the image; of several requests a JSON line each.

    Warnings go to stderr.
    """
    from mmjax.generation.sampling import Sampling

    workdir = _checked_workdir()
    requests = _read_requests()
    sampling = Sampling(_TEMPERATURE.value, _TOP_P.value)
    cli.parse_operative_config(str(workdir))
    from mmjax.generation.requests import GenerationSettings, serve_requests
    from mmjax.generation.trained_model import load_trained_model
    from mmjax.training.config import TrainConfig

    model = load_trained_model(workdir, cli.configured(TrainConfig))
    _warn_of_unknown_words(model.tokenizer, [request.prompt for request in requests])
    if _GUIDANCE.value != 1 and any(not generator.condition_dropout for generator in model.config.generators):
        _warn("--guidance needs GeneratorConfig.condition_dropout in training; this model was always given conditions")
    settings = GenerationSettings(sampling, _MAX_TOKENS.value, _SAMPLING_STEPS.value, _GUIDANCE.value)
    for result in serve_requests(model, requests, settings):
        if _REQUESTS.value:
            print(json.dumps(result, ensure_ascii=False), flush=True)
        elif "answer" in result:
            if not result["ended"]:
                _warn("the answer was cut off where the row was full or --max_tokens was reached")
            print(result["answer"])
    return 0


def _read_requests() -> "list[Request]":
    """The requests, which are checked before the model is loaded."""
    from configs.errors import UserError
    from mmjax.generation.requests import Request, read_requests

    if _REQUESTS.value:
        if _PROMPT.value or _IMAGE.value or _AUDIO.value or _OUTPUT.value:
            raise UserError("--requests gives all requests: leave --prompt, --image, --audio and --output out")
        return read_requests(pathlib.Path(_REQUESTS.value))
    if not (_PROMPT.value.strip() or _IMAGE.value or _AUDIO.value):
        raise UserError("--prompt is missing: a question, or with --output the description of an image")
    return [Request(_PROMPT.value, tuple(_IMAGE.value), tuple(_AUDIO.value), _OUTPUT.value, _SEED.value)]


def _checked_workdir() -> pathlib.Path:
    from configs.errors import UserError

    if not _WORKDIR.value:
        raise UserError("--workdir is missing: the folder that python -m mmjax.train wrote to")
    workdir = pathlib.Path(_WORKDIR.value)
    if not (workdir / cli.OPERATIVE_CONFIG).is_file():
        what = f"has no {cli.OPERATIVE_CONFIG}" if workdir.is_dir() else "is not there"
        raise UserError(f"--workdir={workdir} {what}; give the folder that python -m mmjax.train wrote to")
    return workdir


def _warn_of_unknown_words(tokenizer: object, prompts: list[str]) -> None:
    from data.text.word_tokenizer import WordTokenizer

    if isinstance(tokenizer, WordTokenizer) and (unknown := tokenizer.unknown_words(" ".join(prompts))):
        _warn(f"the model's vocabulary does not have {', '.join(unknown)}; read as <unknown>")


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)
