"""From a model's parameters to a published checkpoint, a layer at a time."""

import dataclasses
import functools
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from configs.architectures import ModelConfig
from configs.errors import UserError
from mmjax.models.layers.lora import merge_layer_adapters
from mmjax.models.model import model_modules
from mmjax.weights import registry
from mmjax.weights.folder import CONFIG_FILE
from mmjax.weights.folder_writer import write_checkpoint_folder
from mmjax.weights.published.rules import Config, PublishedArchitecture, TensorMatch
from mmjax.weights.published_checkpoint import (
    WHOLE_MODEL,
    PublishedCheckpoint,
    checkpoint_matches,
    config_differences,
    config_in_published_form,
    is_ignored_tensor,
    module_of_part,
)
from mmjax.weights.safetensors_file import DTYPES, TensorHeader, contiguous_copy
from sharding.trees import Tree, get_leaf

DTYPE_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""What config.json calls the types that a checkpoint can be written in."""

BESIDE = ("*.json", "*.txt", "*.model", "*.jinja")
"""What is copied of the original: its tokenizer, how pictures are made ready, how text is generated."""

ReadLayer = Callable[[str, str, str], Tree]
"""Parameters in float32, as NumPy arrays, of a (module, piece, layer)."""


@dataclasses.dataclass(frozen=True)
class ExportTarget:
    """What is to be written.

    Attributes:
        published: The architecture.
        config: Ours, in the form of theirs.
        matches: Its tensors and our parameters.
        values: Its config.json, with its dtype.
        dtype: Of tensors that no original has, a key of DTYPE_NAMES.
        original: A checkpoint that the new one is to be like: types of tensors, tensors that are nothing of ours,
            tokenizer; None for none.
    """

    architecture: PublishedArchitecture
    config: Config
    matches: tuple[TensorMatch, ...]
    config_json: Mapping[str, Any]
    dtype: str
    original: PublishedCheckpoint | None = None


def export_target_like(original: PublishedCheckpoint, ours: ModelConfig, part: str, dtype: str = "") -> ExportTarget:
    """A checkpoint like one that there is.

    Args:
        original: That one.
        ours: Our model.
        part: One of its parts, such as `backbone`, or `model`.
        dtype: Of all tensors; empty for each as it is there.

    Raises:
        UserError: It is of another architecture.
    """
    path, published = original.folder.path, original.architecture
    module = module_of_part(ours, part)
    try:
        config = config_in_published_form(published, original.config, ours, module)
        if issubclass(published.config_type, ModelConfig) and module != WHOLE_MODEL:
            raise UserError(f"it holds a whole model, of which {part} alone is none; name the model type to write")
        differing = config_differences(published, original.config, config)
    except UserError as error:
        raise UserError(f"{part!r} can't be written like {path}: {error}") from error
    if differing:
        raise UserError(f"{part!r} can't be written like {path}, whose {CONFIG_FILE} differs: {'; '.join(differing)}")
    values = {**original.config_json, **_dtype_entry(original.config_json, dtype)} if dtype else original.config_json
    return ExportTarget(published, config, checkpoint_matches(published, config, ours), values, dtype, original)


def export_target_of_type(model_type: str, ours: ModelConfig, part: str, dtype: str) -> ExportTarget:
    """A checkpoint of a model type, with no original.

    Raises:
        UserError: The type is not known, or can't compute it.
    """
    published = registry.find_architecture(model_type)
    config = config_in_published_form(published, ours, ours, module_of_part(ours, part))
    values = registry.write_architecture(published, config)
    return ExportTarget(
        published, config, checkpoint_matches(published, config, ours), {**values, **_dtype_entry(values, dtype)}, dtype
    )


def _dtype_entry(values: Mapping[str, Any], dtype: str) -> dict[str, str]:
    """transformers 5 says `dtype` where it was `torch_dtype`; diffusers says nothing."""
    if "_class_name" in values:
        return {}
    return {"dtype" if "dtype" in values else "torch_dtype": dtype}


def export_checkpoint(target: ExportTarget, read: ReadLayer, output: pathlib.Path, limit: int) -> list[str]:
    """Writes a checkpoint; on the host there is never more than one layer of ours and one match of theirs.

    Args:
        target: What is to be written.
        read: Gives our parameters.
        output: The folder; it must not exist, or be empty.
        limit: Bytes of a file's tensors.

    Returns:
        Names of the files with tensors.

    Raises:
        UserError: The folder is not empty, or a value is too large for its type.
    """
    matches = sorted(target.matches, key=lambda of: of.layer)
    ours = {
        name: TensorHeader(_dtype_of(target, name), shape)
        for of in matches
        for first, shape in zip(of.tensor_names, of.tensor_shapes, strict=True)
        for name in _twins(target, first)
    }
    copies = _copies(target, ours)
    declared = {**ours, **{name: tensor for name, (tensor, _) in copies.items()}}
    copied = ((name, read_copy()) for name, (_, read_copy) in copies.items())
    arrays = itertools.chain(_converted(target, matches, read), copied)
    called = {} if target.original is None else target.original.tensor_names
    return write_checkpoint_folder(
        output,
        target.architecture.file_stem,
        {called.get(name, name): tensor for name, tensor in declared.items()},
        ((called.get(name, name), array) for name, array in arrays),
        limit,
        {CONFIG_FILE: json.dumps(target.config_json, indent=2) + "\n"},
        _files_beside(target),
    )


def with_merged_adapters(read: ReadLayer, config: ModelConfig) -> ReadLayer:
    """Parameters with the adapters of a model added to what they adapt."""
    modules = {module.name: module for module in model_modules(config)}

    def merged(module: str, piece: str, layer: str) -> Tree:
        tree, lora = read(module, piece, layer), config.lora_of(module)
        adapters = modules[module].adapter_piece(piece)
        if lora is None or not adapters:
            return tree
        return merge_layer_adapters(tree, read(module, adapters, layer), lora.scale)

    return merged


def _dtype_of(target: ExportTarget, name: str) -> str:
    """The type to write a tensor in: what is asked, else what it was."""
    if target.dtype:
        return DTYPE_NAMES[target.dtype]
    original = target.original
    assert original is not None
    return original.folder.tensors[original.tensor_names[name]].dtype if name in original.tensor_names else "F32"


def _twins(target: ExportTarget, name: str) -> tuple[str, ...]:
    """A tensor, and the names under which the original has it once more."""
    repeated = target.architecture.duplicates(target.config)
    held = () if target.original is None else target.original.tensor_names
    return (name, *(again for again, of in repeated.items() if of == name and again in held))


def _converted(target: ExportTarget, matches: list[TensorMatch], read: ReadLayer) -> Iterator[tuple[str, np.ndarray]]:
    for layer, of_layer in itertools.groupby(matches, key=lambda of: of.layer):
        tree = read(*layer)
        for of in of_layer:
            theirs = of.layout.to_published(tuple(get_leaf(tree, path.split("/", 3)[3]) for path in of.parameter_paths))
            for first, array in zip(of.tensor_names, theirs, strict=True):
                for name in _twins(target, first):
                    yield name, _cast(name, array, _dtype_of(target, name))


def _cast(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        cast = contiguous_copy(array, DTYPES[dtype])
    finite = np.isfinite(cast)
    if not finite.all() and not np.array_equal(np.isfinite(array), finite):
        raise UserError(f"{name} has values up to {np.nanmax(np.abs(array)):.3g}, too large for {dtype}; use bfloat16")
    return cast


def _copies(
    target: ExportTarget, ours: Mapping[str, TensorHeader]
) -> dict[str, tuple[TensorHeader, Callable[[], np.ndarray]]]:
    """Tensors of the original that are nothing of ours on purpose."""
    original = target.original
    if original is None:
        return {}
    return {
        name: (
            dataclasses.replace(original.folder.tensors[there], start=0),
            functools.partial(original.folder.read, there),
        )
        for name, there in original.tensor_names.items()
        if name not in ours and is_ignored_tensor(target.architecture, target.config, name)
    }


def _files_beside(target: ExportTarget) -> list[pathlib.Path]:
    """The original's files that are neither tensors nor about them."""
    if target.original is None:
        return []
    path = target.original.folder.path
    found = {file for pattern in BESIDE for file in path.glob(pattern) if file.is_file()}
    return sorted(file for file in found if file.name != CONFIG_FILE and not file.name.endswith(".index.json"))
