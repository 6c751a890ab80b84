"""`python -m mmjax.generate`: asks a trained model about pictures and clips, or has it draw."""

import json
import pathlib
import sys

from absl import flags

from mmjax import cli

_WORKDIR = flags.DEFINE_string("workdir", "", "Workdir of python -m mmjax.train; its newest whole checkpoint is used.")
_PROMPT = flags.DEFINE_string(
    "prompt", "", "The question, with <image> and <audio> where they stand; with --output, what to draw."
)
_IMAGE = flags.DEFINE_multi_string("image", [], "Picture the question is about; several in the order of the marks.")
_AUDIO = flags.DEFINE_multi_string("audio", [], "Clip the question is about; several in the order of the marks.")
_OUTPUT = flags.DEFINE_string("output", "", "File to draw into; its suffix names the format.")
_REQUESTS = flags.DEFINE_string(
    "requests", "", 'JSONL file of many: {"prompt": ..., "image": [...], "audio": [...], "output": ..., "seed": ...}.'
)
_TEMPERATURE = flags.DEFINE_float("temperature", 0.0, "Of tokens drawn at random; 0 takes the likeliest.")
_TOP_P = flags.DEFINE_float("top_p", 1.0, "Only the likeliest tokens of this probability together may come.")
_MAX_TOKENS = flags.DEFINE_integer("max_tokens", 0, "Tokens of an answer; 0 for what a row holds.", lower_bound=0)
_SAMPLING_STEPS = flags.DEFINE_integer("sampling_steps", 50, "DDIM steps of a picture.", lower_bound=1)
_GUIDANCE = flags.DEFINE_float("guidance", 1.0, "Scale of classifier-free guidance; 1 for none.", lower_bound=0.0)
_SEED = flags.DEFINE_integer("seed", 0, "Keys noise and random tokens.", lower_bound=0, upper_bound=2**31 - 1)


def main() -> int:
    """Prints the answer alone on stdout, or writes the picture; of many, a JSON line each. Remarks go to stderr."""
    from mmjax.generation.sampling import Sampling

    workdir = _checked_workdir()
    requests = _requests()
    sampling = Sampling(_TEMPERATURE.value, _TOP_P.value)
    cli.parse_operative_config(str(workdir))
    from mmjax.generation.requests import GenerationSettings, serve_requests
    from mmjax.generation.trained_model import load_trained_model
    from mmjax.training.config import TrainConfig

    model = load_trained_model(workdir, cli.configured(TrainConfig))
    _name_unknown_words(model.tokenizer, [request.prompt for request in requests])
    if _GUIDANCE.value != 1 and any(not each.condition_dropout for each in model.config.generators):
        _warn("--guidance wants GeneratorConfig.condition_dropout in training; this model always had conditions")
    settings = GenerationSettings(sampling, _MAX_TOKENS.value, _SAMPLING_STEPS.value, _GUIDANCE.value)
    for served in serve_requests(model, requests, settings):
        if _REQUESTS.value:
            print(json.dumps(served, ensure_ascii=False), flush=True)
        elif "answer" not in served:
            continue
        else:
            if not served["ended"]:
                _warn("the answer was cut off where the row was full; the model had not ended it")
            print(served["answer"])
    return 0


def _requests() -> list:
    """What is asked, checked before the model is loaded."""
    from configs.errors import UserError
    from mmjax.generation.requests import Request, read_requests

    if _REQUESTS.value:
        if _PROMPT.value or _IMAGE.value or _AUDIO.value or _OUTPUT.value:
            raise UserError("--requests says all that is asked: leave --prompt, --image, --audio and --output out")
        return read_requests(pathlib.Path(_REQUESTS.value))
    if not (_PROMPT.value.strip() or _IMAGE.value or _AUDIO.value):
        raise UserError("--prompt is missing: a question, or with --output the description of a picture")
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


def _name_unknown_words(tokenizer: object, prompts: list[str]) -> None:
    from data.text.word_tokenizer import WordTokenizer

    if isinstance(tokenizer, WordTokenizer) and (unknown := tokenizer.unknown_words(" ".join(prompts))):
        _warn(f"the model's vocabulary does not have {', '.join(unknown)}; read as <unknown>")


def _warn(remark: str) -> None:
    print(f"warning: {remark}", file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
