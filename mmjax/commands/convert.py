"""`python -m mmjax.convert`: checks published checkpoints, and exports a run as one (docs/how_to/weights.md)."""

import dataclasses
import functools
import pathlib
from typing import TYPE_CHECKING

from mmjax import cli

if TYPE_CHECKING:  # these import jax
    from collections.abc import Sequence

    from configs.architectures import ModelConfig
    from mmjax.training.config import TrainConfig
    from mmjax.weights.export import ExportTarget
    from mmjax.weights.published_checkpoint import PublishedCheckpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertArguments(cli.GinArguments):
    """Flags of the command."""

    folder: str = cli.flag("", "Folder of a published checkpoint to check.", metavar="FOLDER")
    print: bool = cli.flag(False, "Prints the architecture of --folder as gin, to train it.")
    part: str = cli.flag(
        "",
        "Part of the model, as in TrainConfig.trainable: backbone, vision_projector, ...; or model for all.",
        metavar="NAME",
    )
    workdir: str = cli.flag(
        "", "Workdir of python -m mmjax.train whose parameters are to be written.", metavar="FOLDER"
    )
    step: int | None = cli.flag(
        None, "Step of the checkpoint in --workdir; without the flag, the newest.", metavar="N", parse=cli.integer(0)
    )
    output: str = cli.flag(
        "", "Folder to write; it must not exist, or be empty.", metavar="FOLDER", parse=cli.output_folder
    )
    original: str = cli.flag(
        "",
        "Published checkpoint that --output is to be like; without the flag, the one that the run started from.",
        metavar="FOLDER",
    )
    model_type: str = cli.flag("", "Architecture of --output where there is no original: llama, ...", metavar="NAME")
    dtype: str = cli.flag(
        "",
        "Type of the tensors of --output: float32, float16 or bfloat16; without the flag, the type of each in the "
        "original, else the model's.",
        metavar="NAME",
        parse=cli.one_of("float32", "float16", "bfloat16"),
    )
    shard_size: str = cli.flag("5GB", "Size of the largest file of --output, such as 5GB or 500MiB.", metavar="SIZE")


def prepare(arguments: ConvertArguments) -> cli.Work:
    """Chooses between the uses of the command, and checks the flags of each."""
    if bool(arguments.folder) == bool(arguments.workdir):
        raise cli.UserError("give --folder to check a published checkpoint, or --workdir to write one from a run")
    return _prepare_check(arguments) if arguments.folder else _prepare_export(arguments)


def _prepare_check(arguments: ConvertArguments) -> cli.Work:
    from configs.architectures import ModelConfig
    from mmjax.weights.gin_export import gin_text
    from mmjax.weights.published_checkpoint import WHOLE_MODEL, as_model, checkpoint_parts, open_checkpoint

    folder = pathlib.Path(arguments.folder)
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    parts = (WHOLE_MODEL,) if isinstance(config, ModelConfig) else checkpoint_parts(checkpoint)
    if arguments.print:
        return lambda: print(gin_text(config, tuple((part, str(folder)) for part in parts)))
    model, changes = as_model(config), ()
    if arguments.part:
        cli.parse_gin(arguments.gin_file or ("quickstart.gin",), arguments.gin)
        parts, model = (arguments.part,), cli.configured(ModelConfig)
        changes = cli.bound_value("TrainConfig.pretrained_changes", ())
    return functools.partial(check, checkpoint, model, parts, changes)


def check(
    checkpoint: "PublishedCheckpoint", model: "ModelConfig", parts: "Sequence[str]", changes: "Sequence[str]"
) -> None:
    """Compares a published checkpoint with the parts of a model, and prints all that does not fit."""
    from mmjax.weights.compatibility import IncompatibleCheckpointError, compatible_matches

    for part in parts:
        try:
            matches = compatible_matches(checkpoint, model, part, changes)
        except IncompatibleCheckpointError as error:
            if len(error.problems) < 2:
                raise
            print(*error.problems, sep="\n")
            raise cli.UserError(
                f"{checkpoint.folder.path} does not fit {part!r}; the {len(error.problems)} problems are listed above"
            ) from error
        tensors = sum(len(match.tensor_names) for match in matches)
        print(
            f"{checkpoint.folder.path} is a {checkpoint.architecture.name}; {tensors} tensors give {part} all that it "
            "needs"
        )


def _prepare_export(arguments: ConvertArguments) -> cli.Work:
    from mmjax.weights.folder import parse_file_size, require_empty_folder

    limit = parse_file_size(arguments.shard_size)
    if not arguments.output:
        raise cli.UserError("--output is missing: the folder to write")
    output = pathlib.Path(arguments.output)
    require_empty_folder(output)
    if arguments.gin_file:
        raise cli.UserError(
            f"--gin_file={arguments.gin_file[0]}: the run in {arguments.workdir} has written down its own "
            "configuration; leave it out, and change single values by --gin.NAME=VALUE"
        )
    workdir = pathlib.Path(arguments.workdir)
    config = cli.run_config(workdir, arguments)
    return functools.partial(export, config, _export_target(arguments, config), workdir, arguments.step, output, limit)


def export(
    config: "TrainConfig",
    target: "ExportTarget",
    workdir: pathlib.Path,
    step: int | None,
    output: pathlib.Path,
    limit: int,
) -> None:
    """Writes the parameters of a run as a published checkpoint."""
    import jax

    from configs.common.console import plain_console
    from mmjax.training.checkpoints.restoring import layer_reader
    from mmjax.training.metrics.activity import WRITING, display_activity, progress_console
    from mmjax.weights.export import export_checkpoint, with_merged_adapters

    read_layer, saved_step = layer_reader(workdir / "checkpoints", config.model, jax.local_devices()[0], step)
    with display_activity(WRITING, progress_console(plain_console())) as show:
        files = export_checkpoint(target, with_merged_adapters(read_layer, config.model), output, limit, show)
    print(f"Written to {output}: {target.architecture.name}, step {saved_step}; config.json, {', '.join(files)}")


def _export_target(arguments: ConvertArguments, config: "TrainConfig") -> "ExportTarget":
    """Returns the description of the checkpoint to write: of the given model type, or like an original."""
    from mmjax.weights.export import export_target_like, export_target_of_type
    from mmjax.weights.published_checkpoint import WHOLE_MODEL, open_checkpoint

    part = arguments.part or WHOLE_MODEL
    if arguments.model_type:
        return export_target_of_type(arguments.model_type, config.model, part, arguments.dtype or config.model.dtype)
    original = arguments.original or dict(config.pretrained_weights).get(part, "")
    if not original:
        raise cli.UserError(
            f"the run's {part} started from no published checkpoint: give --original=FOLDER of one to be like, or "
            "--model_type, such as llama"
        )
    return export_target_like(open_checkpoint(pathlib.Path(original)), config.model, part, arguments.dtype)


COMMAND = cli.Command(
    name="mmjax.convert",
    summary="Checks a published checkpoint, or writes a run's as one.",
    examples=(
        "--folder=FOLDER --print",
        "--folder=FOLDER --part=backbone --gin_file=mine.gin",
        "--workdir=runs/x --part=backbone --output=FOLDER",
    ),
    arguments=ConvertArguments,
    prepare=prepare,
)
