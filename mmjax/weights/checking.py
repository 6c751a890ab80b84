"""Whether a published checkpoint has what a model needs: everything that is wrong is found before anything is read."""

from collections.abc import Iterable, Mapping

from configs.architectures import ModelConfig
from configs.errors import UserError
from mmjax.models.published.layouts import Shape
from mmjax.models.published.rules import Match
from mmjax.weights.modules import (
    Checkpoint,
    adapted,
    differences,
    held_parts,
    is_ignored,
    matches_of,
    module_of_part,
    of_parts,
    parts,
    shapes_of,
)

READABLE = ("F32", "F16", "BF16")
"""Types whose every value a float32 holds."""


class Misfit(UserError):
    """A published checkpoint and a model that don't fit; says all that is wrong."""


def checked_matches(checkpoint: Checkpoint, ours: ModelConfig, part: str) -> tuple[Match, ...]:
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
        config = adapted(checkpoint.published, checkpoint.config, ours, module)
        differing = differences(checkpoint.published, checkpoint.config, config)
    except UserError as error:
        raise Misfit(f"{path} is no source of {part!r}: {error}") from error
    every = matches_of(checkpoint.published, config, ours)
    host = config if isinstance(config, ModelConfig) else ours
    wanted = of_parts(every, parts(host), part)
    if not wanted:
        raise Misfit(f"{path} has no weights of {part!r}; it has those of {', '.join(held_parts(every, host))}")
    wrong = [f"config.json: {difference}" for difference in differing]
    wrong += tensor_problems(checkpoint, wanted, shapes_of(ours))
    wrong += _extra(checkpoint, every, config)
    if wrong:
        raise Misfit(f"{path} does not fit {part!r}; {len(wrong)} in all:\n" + "\n".join(f"  {line}" for line in wrong))
    return wanted


def tensor_problems(checkpoint: Checkpoint, matches: Iterable[Match], shapes: Mapping[str, Shape]) -> list[str]:
    """What is missing, of another shape or of a type that is not read; with their names and ours."""
    wrong = []
    for of in matches:
        ours = ", ".join(of.paths)
        for name, needed in zip(of.names, of.their_shapes, strict=True):
            if name not in checkpoint.names:
                wrong.append(f"missing: {name}, which is {ours}")
                continue
            tensor = checkpoint.folder.tensors[checkpoint.names[name]]
            if tensor.shape != needed:
                wrong.append(f"shape: {name} is {list(tensor.shape)}, and {ours} needs {list(needed)}")
            if tensor.dtype not in READABLE:
                wrong.append(f"dtype: {name}, which is {ours}, is {tensor.dtype}; {', '.join(READABLE)} are read")
        differing = [path for path, shape in zip(of.paths, of.shapes, strict=True) if shapes.get(path) != shape]
        wrong += [
            f"shape: {', '.join(of.names)} gives {path} of {list(of.shapes[of.paths.index(path)])}, and the model's is "
            f"{list(shapes[path])}"
            if path in shapes
            else f"extra: {', '.join(of.names)} gives {path}, which the model does not have"
            for path in differing
        ]
    return wrong


def _extra(checkpoint: Checkpoint, every: Iterable[Match], config: object) -> list[str]:
    published = checkpoint.published
    known = {name for of in every for name in of.names} | set(published.repeated(config))
    extra = [name for name in checkpoint.names if name not in known and not is_ignored(published, config, name)]
    return [f"extra: {name}, which is no parameter of ours" for name in extra]
