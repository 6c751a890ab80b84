"""`python -m mmjax.convert`: reads published checkpoints, and writes a run's parameters as one (docs/weights.md).

python -m mmjax.convert --folder=FOLDER                    checks that it is complete, and says what it is
python -m mmjax.convert --folder=FOLDER --print            prints its architecture as gin, to train it
python -m mmjax.convert --folder=FOLDER --part=backbone --gin_file=mine.gin     checks that it fits a part of a model
python -m mmjax.convert --workdir=runs/x --part=backbone --output=FOLDER        writes a part of a run's model
"""

import pathlib
from typing import TYPE_CHECKING

from absl import flags

from mmjax import cli

if TYPE_CHECKING:  # these import jax
    from mmjax.training.config import TrainConfig
    from mmjax.weights.export import ExportTarget

_FOLDER = flags.DEFINE_string("folder", "", "Folder of a published checkpoint to check.")
_PRINT = flags.DEFINE_bool("print", False, "Print the architecture of --folder as gin.")
_PART = flags.DEFINE_string(
    "part", "", "Part of the model, as in TrainConfig.trainable: backbone, vision_projector, ...; or model for all."
)
_WORKDIR = flags.DEFINE_string("workdir", "", "Workdir of python -m mmjax.train whose parameters are to be written.")
_STEP = flags.DEFINE_integer("step", None, "Step of the checkpoint in --workdir; default: the newest.")
_OUTPUT = flags.DEFINE_string("output", "", "Folder to write; it must not exist, or be empty.")
_ORIGINAL = flags.DEFINE_string(
    "original", "", "Published checkpoint that --output is to be like; default: the one that the run started from."
)
_MODEL_TYPE = flags.DEFINE_string("model_type", "", "Architecture of --output where there is no original: llama, ...")
_DTYPE = flags.DEFINE_enum(
    "dtype",
    None,
    ["float32", "float16", "bfloat16"],
    "Type of the tensors of --output; default: that of each in the original, else the model's.",
)
_SHARD_SIZE = flags.DEFINE_string("shard_size", "5GB", "Size of the largest file of --output, such as 5GB or 500MiB.")


def main() -> int:
    """Checks a published checkpoint, or writes one."""
    from configs.errors import UserError

    if bool(_FOLDER.value) == bool(_WORKDIR.value):
        raise UserError("give --folder to check a published checkpoint, or --workdir to write one from a run")
    return _check(pathlib.Path(_FOLDER.value)) if _FOLDER.value else _write(pathlib.Path(_WORKDIR.value))


def _check(folder: pathlib.Path) -> int:
    from configs.architectures import ModelConfig
    from mmjax.weights.compatibility import compatible_matches
    from mmjax.weights.gin_export import gin_text
    from mmjax.weights.published_checkpoint import WHOLE_MODEL, as_model, checkpoint_parts, open_checkpoint

    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    parts = (WHOLE_MODEL,) if isinstance(config, ModelConfig) else checkpoint_parts(checkpoint)
    if _PRINT.value:
        print(gin_text(config, tuple((part, str(folder)) for part in parts)))
        return 0
    model = as_model(config)
    if _PART.value:
        cli.parse_gin("quickstart.gin")
        parts, model = (_PART.value,), cli.configured(ModelConfig)
    for part in parts:
        tensors = sum(len(match.tensor_names) for match in compatible_matches(checkpoint, model, part))
        print(f"{folder} is a {checkpoint.architecture.name}; {tensors} tensors give {part} all that it needs")
    return 0


def _write(workdir: pathlib.Path) -> int:
    import jax

    from configs.errors import UserError
    from mmjax.weights.export import export_checkpoint, with_merged_adapters
    from mmjax.weights.folder import parse_file_size, require_empty_folder

    limit = parse_file_size(_SHARD_SIZE.value)
    if not _OUTPUT.value:
        raise UserError("--output is missing: the folder to write")
    output = pathlib.Path(_OUTPUT.value)
    require_empty_folder(output)
    config = _run_config(workdir)
    from mmjax.training.checkpoints.manager import CheckpointManager

    target = _export_target(config)
    checkpoints = CheckpointManager(workdir / "checkpoints", config.model)
    read_layer, step = checkpoints.layer_reader(jax.local_devices()[0], _STEP.value)
    files = export_checkpoint(target, with_merged_adapters(read_layer, config.model), output, limit)
    print(f"Written to {output}: {target.architecture.name}, step {step}; config.json, {', '.join(files)}")
    return 0


def _run_config(workdir: pathlib.Path) -> "TrainConfig":
    """The configuration that a run was started with."""
    from configs.errors import UserError

    if not (workdir / cli.OPERATIVE_CONFIG).is_file():
        raise UserError(f"--workdir={workdir} has no {cli.OPERATIVE_CONFIG}; give the folder that mmjax.train wrote to")
    cli.parse_operative_config(str(workdir))
    from mmjax.training.config import TrainConfig

    return cli.configured(TrainConfig)


def _export_target(config: "TrainConfig") -> "ExportTarget":
    """The checkpoint to write: of the given model type, or like an original."""
    from configs.errors import UserError
    from mmjax.weights.export import export_target_like, export_target_of_type
    from mmjax.weights.published_checkpoint import WHOLE_MODEL, open_checkpoint

    part = _PART.value or WHOLE_MODEL
    if _MODEL_TYPE.value:
        return export_target_of_type(_MODEL_TYPE.value, config.model, part, _DTYPE.value or config.model.dtype)
    original = _ORIGINAL.value or dict(config.pretrained_weights).get(part, "")
    if not original:
        raise UserError(
            f"the run's {part} started from no published checkpoint: give --original=FOLDER of one to be like, or "
            "--model_type, such as llama"
        )
    return export_target_like(open_checkpoint(pathlib.Path(original)), config.model, part, _DTYPE.value or "")
