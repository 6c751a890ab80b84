"""Whether a published checkpoint has what a model needs: everything that is wrong is found before anything is read."""

from collections.abc import Iterable, Mapping

from configs.architectures import ModelConfig
from configs.errors import UserError
from mmjax.weights.published.rules import TensorMatch
from mmjax.weights.published.tensor_layouts import Shape
from mmjax.weights.published_checkpoint import (
    PublishedCheckpoint,
    checkpoint_matches,
    config_differences,
    config_in_published_form,
    is_ignored_tensor,
    matches_of_part,
    module_of_part,
    parameter_shapes,
    parts_by_piece,
    parts_of_matches,
)

READABLE = ("F32", "F16", "BF16")
"""Types whose every value a float32 holds."""


class IncompatibleCheckpointError(UserError):
    """A published checkpoint and a model that don't fit; says all that is wrong."""


def compatible_matches(checkpoint: PublishedCheckpoint, ours: ModelConfig, part: str) -> tuple[TensorMatch, ...]:
    """The tensors of a checkpoint that are a part of a model.

    Args:
        checkpoint: The published one.
        ours: The model.
        part: A part of it that trains by name, such as `backbone` or `vision_projector`; or `model`.

    Raises:
        Misfit: The architectures differ; tensors are missing, extra, or of another shape or type. All are listed.
    """
    path = checkpoint.folder.path
    module = module_of_part(ours, part)
    try:
        config = config_in_published_form(checkpoint.architecture, checkpoint.config, ours, module)
        differing = config_differences(checkpoint.architecture, checkpoint.config, config)
    except UserError as error:
        raise IncompatibleCheckpointError(f"{path} is no source of {part!r}: {error}") from error
    every = checkpoint_matches(checkpoint.architecture, config, ours)
    host = config if isinstance(config, ModelConfig) else ours
    wanted = matches_of_part(every, parts_by_piece(host), part)
    if not wanted:
        raise IncompatibleCheckpointError(
            f"{path} has no weights of {part!r}; it has those of {', '.join(parts_of_matches(every, host))}"
        )
    wrong = [f"config.json: {difference}" for difference in differing]
    wrong += tensor_problems(checkpoint, wanted, parameter_shapes(ours))
    wrong += _extra(checkpoint, every, config)
    if wrong:
        raise IncompatibleCheckpointError(
            f"{path} does not fit {part!r}; {len(wrong)} in all:\n" + "\n".join(f"  {line}" for line in wrong)
        )
    return wanted


def tensor_problems(
    checkpoint: PublishedCheckpoint, matches: Iterable[TensorMatch], shapes: Mapping[str, Shape]
) -> list[str]:
    """What is missing, of another shape or of a type that is not read; with their names and ours."""
    wrong = []
    for of in matches:
        ours = ", ".join(of.parameter_paths)
        for name, needed in zip(of.tensor_names, of.tensor_shapes, strict=True):
            if name not in checkpoint.tensor_names:
                wrong.append(f"missing: {name}, which is {ours}")
                continue
            tensor = checkpoint.folder.tensors[checkpoint.tensor_names[name]]
            if tensor.shape != needed:
                wrong.append(f"shape: {name} is {list(tensor.shape)}, and {ours} needs {list(needed)}")
            if tensor.dtype not in READABLE:
                wrong.append(f"dtype: {name}, which is {ours}, is {tensor.dtype}; {', '.join(READABLE)} are read")
        differing = [
            path
            for path, shape in zip(of.parameter_paths, of.parameter_shapes, strict=True)
            if shapes.get(path) != shape
        ]
        wrong += [
            f"shape: {', '.join(of.tensor_names)} gives {path} of {list(of.parameter_shapes[of.parameter_paths.index(path)])}, and the model's is "
            f"{list(shapes[path])}"
            if path in shapes
            else f"extra: {', '.join(of.tensor_names)} gives {path}, which the model does not have"
            for path in differing
        ]
    return wrong


def _extra(checkpoint: PublishedCheckpoint, every: Iterable[TensorMatch], config: object) -> list[str]:
    published = checkpoint.architecture
    known = {name for of in every for name in of.tensor_names} | set(published.duplicates(config))
    extra = [
        name for name in checkpoint.tensor_names if name not in known and not is_ignored_tensor(published, config, name)
    ]
    return [f"extra: {name}, which is no parameter of ours" for name in extra]
