"""`python -m mmjax.generate`: asks a trained model about a picture, or has it draw one."""

import pathlib
import sys

from absl import flags

from mmjax import cli

_WORKDIR = flags.DEFINE_string("workdir", "", "Workdir of python -m mmjax.train; its newest whole checkpoint is used.")
_PROMPT = flags.DEFINE_string("prompt", "", "The question; with --output, the description of the picture to draw.")
_IMAGE = flags.DEFINE_string("image", "", "Picture the question is about; without one it is asked on its own.")
_OUTPUT = flags.DEFINE_string("output", "", "File to draw into; its suffix names the format.")
_SAMPLING_STEPS = flags.DEFINE_integer("sampling_steps", 50, "DDIM steps of a picture.", lower_bound=1)
_GUIDANCE = flags.DEFINE_float("guidance", 1.0, "Scale of classifier-free guidance; 1 for none.", lower_bound=0.0)
_SEED = flags.DEFINE_integer("seed", 0, "Keys the noise a picture is drawn from.", lower_bound=0, upper_bound=2**31 - 1)


def main() -> int:
    """Prints the answer alone on stdout, or writes the picture; remarks go to stderr."""
    from data.images import load_image, save_image

    workdir, output = _checked_workdir(), _checked_output()
    image = load_image(_IMAGE.value) if _IMAGE.value else None
    cli.parse_gin(str(workdir / cli.OPERATIVE_CONFIG))
    from mmjax.training.config import TrainConfig
    from mmjax.training.generation import load_trained

    model = load_trained(workdir, cli.configured(TrainConfig))
    if unknown := model.tokenizer.unknown_words(_PROMPT.value):
        _warn(f"the model's vocabulary does not have {', '.join(unknown)}; read as <unknown>")
    if output:
        (picture,) = model.draw([_PROMPT.value], [_SEED.value], _SAMPLING_STEPS.value, _GUIDANCE.value)
        save_image(output, picture)
        return 0
    answer = model.answer(_PROMPT.value, image)
    if not answer.ended:
        _warn("the answer was cut off where the row was full; the model had not ended it")
    print(answer.text)
    return 0


def _checked_workdir() -> pathlib.Path:
    from configs.errors import UserError

    if not _PROMPT.value.strip():
        raise UserError("--prompt is missing: a question, or with --output the description of a picture")
    if not _WORKDIR.value:
        raise UserError("--workdir is missing: the folder that python -m mmjax.train wrote to")
    workdir = pathlib.Path(_WORKDIR.value)
    if not (workdir / cli.OPERATIVE_CONFIG).is_file():
        what = f"has no {cli.OPERATIVE_CONFIG}" if workdir.is_dir() else "is not there"
        raise UserError(f"--workdir={workdir} {what}; give the folder that python -m mmjax.train wrote to")
    return workdir


def _checked_output() -> pathlib.Path | None:
    """Where to draw; found out before the model is loaded, not after."""
    from PIL import Image

    from configs.errors import UserError

    if not _OUTPUT.value:
        return None
    if _IMAGE.value:
        raise UserError("--image asks about a picture and --output draws one: give one of them, and ask twice for both")
    output = pathlib.Path(_OUTPUT.value)
    suffixes = Image.registered_extensions()
    if suffixes.get(output.suffix.lower()) not in Image.SAVE:
        raise UserError(f"--output={output}: no picture format has the suffix {output.suffix!r}; use .png")
    if not output.absolute().parent.is_dir():
        raise UserError(f"--output={output}: there is no folder {output.parent}; make it first")
    return output


def _warn(remark: str) -> None:
    print(f"warning: {remark}", file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
