"""Checks that a published checkpoint has the tensors that a model needs, before tensors are read.

Only copies of other tensors are read, to compare them. Initialisation and the command `mmjax.convert` call it.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from configs.architectures import ModelConfig
from configs.common.errors import UserError
from configs.training_choices import PRETRAINED_CHANGES
from mmjax.weights.published.rules import Config, TensorMatch
from mmjax.weights.published.tensor_layouts import Shape
from mmjax.weights.published_checkpoint import (
    WHOLE_MODEL,
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
    published_backbone,
    with_published_values,
)

COMPARED_ROWS = 4096
"""Number of rows of two tensors that are compared at once, so that little memory is needed."""

READABLE_DTYPES = ("F32", "F16", "BF16")
"""Types whose every value float32 represents exactly."""


class IncompatibleCheckpointError(UserError):
    """A published checkpoint does not fit a model; the message names the first problem.

    Attributes:
        problems: All problems that were found, a line each; empty if the checkpoint could not be compared at all.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


def compatible_matches(
    checkpoint: PublishedCheckpoint, model: ModelConfig, part: str, changes: Sequence[str] = ()
) -> tuple[TensorMatch, ...]:
    """Matches the tensors of a checkpoint with the parameters of a part of a model.

    Args:
        checkpoint: The published checkpoint.
        model: The model.
        part: Name of a part of it, such as `backbone` or `vision_projector`; or `model`.
        changes: Fields of the backbone that may differ, of `PRETRAINED_CHANGES`. The matches are computed for a model
            with the checkpoint's values of them, so that tables of a larger vocabulary have more rows than matches.

    Raises:
        IncompatibleCheckpointError: The architectures differ, or tensors are missing, extra, or of another shape or
            type.
    """
    path, ours = checkpoint.folder.path, model.backbone.vocabulary
    module = module_of_part(model, part)
    model = with_published_values(model, checkpoint.config, changes)
    try:
        config = config_in_published_form(checkpoint.architecture, checkpoint.config, model, module)
        differences = config_differences(checkpoint.architecture, checkpoint.config, config)
    except UserError as error:
        raise IncompatibleCheckpointError(f"{path} is no source of {part!r}: {error}") from error
    all_matches = checkpoint_matches(checkpoint.architecture, config, model)
    described = config if isinstance(config, ModelConfig) else model
    matches = matches_of_part(all_matches, parts_by_piece(described), part)
    if not matches:
        raise IncompatibleCheckpointError(
            f"{path} has no weights of {part!r}; it has weights of "
            f"{', '.join(parts_of_matches(all_matches, described))}"
        )
    problems = [f"config.json: {difference}" for difference in differences]
    if module in (WHOLE_MODEL, model.backbone.name) and ours < (theirs := model.backbone.vocabulary):
        problems.append(f"vocabulary: {theirs} rows in the checkpoint and {ours} in the model; rows can only be added")
    problems += tensor_problems(checkpoint, matches, parameter_shapes(model))
    problems += _extra_tensors(checkpoint, all_matches, config)
    problems += _differing_copies(checkpoint, matches, config)
    if problems:
        others = (
            f"; {len(problems) - 1} more are listed by python -m mmjax.convert --folder={path} --part={part} with the "
            "gin file of the model"
        )
        raise IncompatibleCheckpointError(
            f"{path} does not fit {part!r}: {problems[0]}{_changes_to_name(checkpoint, model, module)}"
            f"{others if problems[1:] else ''}",
            problems,
        )
    return matches


def _changes_to_name(checkpoint: PublishedCheckpoint, model: ModelConfig, module: str) -> str:
    """Names the setting that allows the differences, where a run may have them on purpose; else empty."""
    published = published_backbone(checkpoint.config)
    if published is None or module not in (WHOLE_MODEL, model.backbone.name):
        return ""
    ours = model.backbone
    fields = [name for name in PRETRAINED_CHANGES if getattr(published, name) != getattr(ours, name)]
    if not fields or ours.vocabulary < published.vocabulary:
        return ""
    return f"; if this is meant, name {', '.join(fields)} in TrainConfig.pretrained_changes"


def tensor_problems(
    checkpoint: PublishedCheckpoint, matches: Iterable[TensorMatch], shapes: Mapping[str, Shape]
) -> list[str]:
    """Names tensors that are missing, of another shape, or of a type that is not read, with their parameters.

    Args:
        checkpoint: The published checkpoint.
        matches: The matches to check.
        shapes: Shapes of the model's parameters, by `module/piece/layer/path`.
    """
    problems = []
    for match in matches:
        parameters = ", ".join(match.parameter_paths)
        for name, expected_shape in zip(match.tensor_names, match.tensor_shapes, strict=True):
            if name not in checkpoint.tensor_names:
                problems.append(f"missing: {name}, which is {parameters}")
                continue
            header = checkpoint.folder.tensors[checkpoint.tensor_names[name]]
            if header.shape != expected_shape:
                problems.append(f"shape: {name} is {list(header.shape)}, and {parameters} needs {list(expected_shape)}")
            if header.dtype not in READABLE_DTYPES:
                problems.append(
                    f"dtype: {name}, which is {parameters}, is {header.dtype}; {', '.join(READABLE_DTYPES)} are read"
                )
        names = ", ".join(match.tensor_names)
        for path, shape in zip(match.parameter_paths, match.parameter_shapes, strict=True):
            if path not in shapes:
                problems.append(f"extra: {names} gives {path}, which the model does not have")
            elif shapes[path] != shape:
                problems.append(
                    f"shape: {names} gives {path} of {list(shape)}, and the model's is {list(shapes[path])}"
                )
    return problems


def _extra_tensors(checkpoint: PublishedCheckpoint, matches: Iterable[TensorMatch], config: Config) -> list[str]:
    """Names tensors of the checkpoint that no rule names and that are not ignored."""
    architecture = checkpoint.architecture
    known = {name for match in matches for name in match.tensor_names} | set(architecture.duplicates(config))
    extra = [
        name
        for name in checkpoint.tensor_names
        if name not in known and not is_ignored_tensor(architecture, config, name)
    ]
    return [f"extra: {name}, which is no parameter of the model" for name in extra]


def _differing_copies(checkpoint: PublishedCheckpoint, matches: Iterable[TensorMatch], config: Config) -> list[str]:
    """Names tensors that should be copies of one that is read, and differ from it, such as a head that is not tied."""
    read = {name for match in matches for name in match.tensor_names} & set(checkpoint.tensor_names)
    copies = checkpoint.architecture.duplicates(config)
    return [
        f"copy: {copy} differs from {name}, and config.json says that they are one; set tie_word_embeddings there to "
        "false to read both"
        for copy, name in copies.items()
        if name in read and copy in checkpoint.tensor_names and not _are_equal(checkpoint, copy, name)
    ]


def _are_equal(checkpoint: PublishedCheckpoint, *names: str) -> bool:
    """Whether two tensors of a checkpoint have the same bits."""
    first, second = (checkpoint.folder.tensors[checkpoint.tensor_names[name]] for name in names)
    if (first.dtype, first.shape) != (second.dtype, second.shape) or first.dtype not in READABLE_DTYPES:
        return False
    one, other = (np.atleast_1d(checkpoint.folder.read(checkpoint.tensor_names[name])).view(np.uint8) for name in names)
    rows = range(0, len(one), COMPARED_ROWS)
    return all(np.array_equal(one[row : row + COMPARED_ROWS], other[row : row + COMPARED_ROWS]) for row in rows)
