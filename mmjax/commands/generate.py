"""`python -m mmjax.generate`: answers questions about images and other media by a trained model, or draws images."""

import dataclasses
import functools
import json
import pathlib
import sys
from typing import TYPE_CHECKING

from mmjax import cli

if TYPE_CHECKING:  # these import jax
    from mmjax.generation.requests import GenerationSettings, Request
    from mmjax.training.config import TrainConfig


def _item(text: str) -> tuple[str, str]:
    """Parses `FIELD=FILE` to the field and the file."""
    field, _, file = text.partition("=")
    if not (field.isidentifier() and file):
        raise cli.UserError(f"{text!r} is no FIELD=FILE, such as windows=a.npy")
    return field, file


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateArguments(cli.BindingArguments):
    """Flags of the command."""

    workdir: str = cli.flag("", "Workdir of python -m mmjax.train.", metavar="FOLDER")
    step: int | None = cli.flag(
        None, "Step of the checkpoint in --workdir; without the flag, the newest.", metavar="N", parse=cli.integer(0)
    )
    prompt: str = cli.flag(
        "",
        "Question, with <image>, <audio> and <video> where they stand; with --output, description of an image.",
    )
    image: tuple[str, ...] = cli.flag(
        (),
        "Image file of the question. Repeatable, in the order of placeholders.",
        metavar="FILE",
        repeatable=True,
    )
    audio: tuple[str, ...] = cli.flag(
        (),
        "Audio file of the question. Repeatable, in the order of placeholders.",
        metavar="FILE",
        repeatable=True,
    )
    video: tuple[str, ...] = cli.flag(
        (),
        "Video file of the question. Repeatable, in the order of placeholders.",
        metavar="FILE",
        repeatable=True,
    )
    item: tuple[tuple[str, str], ...] = cli.flag(
        (),
        "File for an encoder of your own that reads FIELD, whose placeholder is <FIELD>. Repeatable.",
        metavar="FIELD=FILE",
        parse=_item,
        repeatable=True,
    )
    output: str = cli.flag("", "File to write a generated image to; its suffix gives the format.", metavar="FILE")
    requests: str = cli.flag(
        "",
        'JSONL file of many requests: {"prompt": ..., "image": [...], "audio": [...], "video": [...], '
        '"items": {FIELD: [...]}, "output": ..., "seed": ...}.',
        metavar="FILE",
    )
    temperature: float = cli.flag(
        0.0, "Sampling temperature; 0 for the most likely tokens.", metavar="X", parse=cli.number(0)
    )
    top_p: float = cli.flag(
        1.0,
        "Probability of the candidates together (nucleus); 1 for all.",
        metavar="X",
        parse=cli.number(0, 1),
    )
    top_k: int = cli.flag(
        0, "How many of the most likely tokens are candidates; 0 for all.", metavar="N", parse=cli.integer(0)
    )
    min_p: float = cli.flag(
        0.0,
        "Least probability of a candidate, as a share of the highest; 0 for all.",
        metavar="X",
        parse=cli.number(0, 1),
    )
    repetition_penalty: float = cli.flag(
        1.0,
        "Divides positive and multiplies negative logits of tokens of the prompt or the answer so far; 1 for none.",
        metavar="X",
        parse=cli.number(0),
    )
    max_tokens: int = cli.flag(
        0, "Most tokens of an answer; 0 for all that a row has room for.", metavar="N", parse=cli.integer(0)
    )
    stop: tuple[str, ...] = cli.flag((), "Text at which an answer ends. Repeatable.", metavar="TEXT", repeatable=True)
    sampling_steps: int = cli.flag(50, "DDIM steps of an image.", metavar="N", parse=cli.integer(1))
    guidance: float = cli.flag(1.0, "Scale of classifier-free guidance; 1 for none.", metavar="X", parse=cli.number(0))
    seed: int = cli.flag(
        0, "Seed of an image's noise and of sampled tokens.", metavar="N", parse=cli.integer(0, 2**31 - 1)
    )


def prepare(arguments: GenerateArguments) -> cli.Work:
    """Reads the requests and the configuration of the run, before the model is loaded."""
    if not arguments.workdir:
        raise cli.UserError("--workdir is missing: the folder that python -m mmjax.train wrote to")
    workdir = pathlib.Path(arguments.workdir)
    config = cli.run_config(workdir, arguments)
    from mmjax.generation.requests import GenerationSettings
    from mmjax.generation.sampling import Sampling

    requests = _read_requests(arguments)
    settings = GenerationSettings(
        Sampling(
            arguments.temperature, arguments.top_p, arguments.top_k, arguments.min_p, arguments.repetition_penalty
        ),
        max_tokens=arguments.max_tokens,
        stop=arguments.stop,
        sampling_steps=arguments.sampling_steps,
        guidance=arguments.guidance,
    )
    return functools.partial(generate, config, workdir, arguments.step, requests, settings, bool(arguments.requests))


def generate(
    config: "TrainConfig",
    workdir: pathlib.Path,
    step: int | None,
    requests: "list[Request]",
    settings: "GenerationSettings",
    as_json: bool,
) -> int:
    """Prints the answer alone on stdout, or writes the image; of several requests a JSON line each.

    Warnings go to stderr.
    """
    from mmjax.generation.requests import serve_requests
    from mmjax.generation.trained_model import load_trained_model
    from mmjax.training.metrics.activity import ANSWERING, display_call

    with display_call() as display:
        display.show(ANSWERING, 0, len(requests))
        model = load_trained_model(workdir, config, step)
        _warn_of_unknown_words(model.tokenizer, [request.prompt for request in requests])
        if model.drawing_warning and any(request.output for request in requests):
            _warn(model.drawing_warning)
        if settings.guidance != 1 and any(not generator.condition_dropout for generator in model.config.generators):
            _warn(
                "--guidance needs GeneratorConfig.condition_dropout in training; this model was always given conditions"
            )
        for done, result in enumerate(serve_requests(model, requests, settings), start=1):
            if as_json:
                print(json.dumps(result, ensure_ascii=False), flush=True)
            elif "answer" in result:
                if not result["ended"]:
                    _warn("the answer was cut off where the row was full or --max_tokens was reached")
                print(result["answer"])
            display.show(ANSWERING, done, len(requests))
    return 0


def _read_requests(arguments: GenerateArguments) -> "list[Request]":
    from mmjax.generation.requests import Request, read_requests

    files = {"image": arguments.image, "audio": arguments.audio, "video": arguments.video}
    if arguments.requests:
        if arguments.prompt or any(files.values()) or arguments.item or arguments.output:
            flags = "--prompt, --image, --audio, --video, --item, --output"
            raise cli.UserError(f"--requests gives all requests: leave {flags} out")
        return read_requests(pathlib.Path(arguments.requests))
    if not (arguments.prompt.strip() or any(files.values()) or arguments.item):
        raise cli.UserError("--prompt is missing: a question, or with --output the description of an image")
    items: dict[str, tuple[str, ...]] = {}
    for field, file in arguments.item:
        items[field] = (*items.get(field, ()), file)
    return [
        Request(
            prompt=arguments.prompt,
            **files,
            items=items,
            output=arguments.output,
            seed=arguments.seed,
        )
    ]


def _warn_of_unknown_words(tokenizer: object, prompts: list[str]) -> None:
    from data.text.word_tokenizer import WordTokenizer

    if isinstance(tokenizer, WordTokenizer) and (unknown := tokenizer.unknown_words(" ".join(prompts))):
        words = ", ".join(f'"{word}"' for word in unknown)
        _warn(f"the model's vocabulary does not have {words}; read as <unknown>")


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


COMMAND = cli.Command(
    name="mmjax.generate",
    summary="Asks a trained model about media, or lets it draw images.",
    examples=(
        '--workdir=runs/short --image=shape.png --prompt="what color is it?"',
        '--workdir=runs/clips --video=clip.mp4 --prompt="which way does it move?"',
        '--workdir=runs/short --prompt="a blue circle" --output=circle.png',
    ),
    arguments=GenerateArguments,
    prepare=prepare,
)
