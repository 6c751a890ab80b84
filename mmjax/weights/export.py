"""Export of a model's parameters as a published checkpoint, one layer at a time, for the command `mmjax.convert`."""

import copy
import dataclasses
import functools
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from configs.architectures import ModelConfig
from configs.common.errors import UserError
from configs.training_choices import PRETRAINED_CHANGES
from mmjax.models.layers.lora import merge_layer_adapters
from mmjax.models.model import model_modules
from mmjax.weights.folder import CONFIG_FILE, write_checkpoint_folder
from mmjax.weights.published.rules import Config, PublishedArchitecture, TensorMatch
from mmjax.weights.published_checkpoint import (
    WHOLE_MODEL,
    PublishedCheckpoint,
    changed_values,
    checkpoint_matches,
    config_differences,
    config_in_published_form,
    is_ignored_tensor,
    module_of_part,
    with_published_values,
)
from mmjax.weights.registry import find_architecture, read_architecture, write_architecture
from mmjax.weights.safetensors_file import DTYPES, TensorHeader, contiguous_copy
from sharding.trees import Tree, get_leaf

DTYPE_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Types that a checkpoint can be written in: config.json's names, and safetensors' names."""

COPIED_FILES = (
    *("*.json", "*.txt", "*.model", "*.jinja", "additional_chat_templates/*.jinja"),
    *("*.tiktoken", "*.bpe", "*.vocab", "*.spm", "*.py"),
)
"""Files that are copied from the original: its tokenizer in any of the forms that transformers reads, its chat
templates, its image preprocessing, its generation settings, and the code of a format that has its own. Nothing here
runs that code; transformers does, when it is told to trust it.
"""

ReadLayer = Callable[[str, str, str], Tree]
"""Reads the parameters of a (module, piece, layer), in float32 as NumPy arrays."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportTarget:
    """A checkpoint that is to be written.

    Attributes:
        architecture: Its architecture.
        config: Its configuration, as `config_in_published_form` returns it.
        matches: Its tensors with the model's parameters.
        config_json: Its config.json, with the dtype.
        dtype: Type of all tensors, a key of DTYPE_NAMES; empty for the type that each has in the original.
        original: A published checkpoint from which it takes the types of tensors, the tensors without a parameter, and
            the tokenizer; None for none.
    """

    architecture: PublishedArchitecture
    config: Config
    matches: tuple[TensorMatch, ...]
    config_json: Mapping[str, Any]
    dtype: str
    original: PublishedCheckpoint | None = None


def export_target_like(original: PublishedCheckpoint, model: ModelConfig, part: str, dtype: str = "") -> ExportTarget:
    """Describes a checkpoint like an existing one, with the model's vocabulary and rotary bases (`PRETRAINED_CHANGES`).

    Args:
        original: The existing checkpoint.
        model: The model.
        part: Name of one of its parts, such as `backbone`, or `model`.
        dtype: Type of all tensors; empty for the type that each has in the original.

    Raises:
        UserError: The original has another architecture than the model.
    """
    path, architecture = original.folder.path, original.architecture
    module = module_of_part(model, part)
    try:
        config = config_in_published_form(architecture, original.config, model, module)
        if issubclass(architecture.config_type, ModelConfig) and module != WHOLE_MODEL:
            raise UserError(f"it holds a whole model, and {part} is only a part of one; name the model type to write")
        compared = with_published_values(model, original.config, PRETRAINED_CHANGES)
        compared_config = config_in_published_form(architecture, original.config, compared, module)
        differences = config_differences(architecture, original.config, compared_config)
        config_json = _with_changes(original, compared_config, config)
    except UserError as error:
        raise UserError(f"{part!r} can't be written like {path}: {error}") from error
    if differences:
        raise UserError(f"{part!r} can't be written like {path}, whose {CONFIG_FILE} differs: {'; '.join(differences)}")
    if dtype:
        config_json |= _dtype_entry(config_json, dtype)
    return ExportTarget(
        architecture=architecture,
        config=config,
        matches=checkpoint_matches(architecture, config, model),
        config_json=config_json,
        dtype=dtype,
        original=original,
    )


def _with_changes(original: PublishedCheckpoint, before: Config, config: Config) -> dict[str, Any]:
    """Returns the original's config.json with the values of another configuration.

    A value is replaced where the file has it, which depends on the version of transformers that wrote it: in the
    mapping that the key names or below, else anywhere.

    Raises:
        UserError: The file would then describe another backbone than the configuration.
    """
    config_json, architecture = copy.deepcopy(dict(original.config_json)), original.architecture
    changed = changed_values(architecture, before, config)
    for key, (old, new) in changed.items():
        *parents, name = key.split(".")
        scope: dict[str, Any] = functools.reduce(
            lambda mapping, parent: mapping.get(parent) or {}, parents, config_json
        )
        if not (_replace_value(scope, name, old, new) or _replace_value(config_json, name, old, new)):
            scope = config_json
            for parent in parents:
                scope[parent] = scope.get(parent) or {}
                scope = scope[parent]
            scope[name] = new
    if changed:
        read = read_architecture(config_json)[1]
        if isinstance(config, ModelConfig):
            read = dataclasses.replace(config, backbone=read.backbone)
        if wrong := config_differences(architecture, config, read):
            raise UserError(f"its {CONFIG_FILE} would read as another model's, {wrong[0]}; name a model type instead")
    return config_json


def _replace_value(mapping: dict[str, Any], name: str, old: Any, new: Any) -> bool:
    """Replaces a value under a name in nested mappings; returns whether the value was there."""
    replaced = False
    for key, value in mapping.items():
        if key == name and value == old:
            mapping[key], replaced = new, True
        elif isinstance(value, dict):
            replaced |= _replace_value(value, name, old, new)
    return replaced


def export_target_of_type(model_type: str, model: ModelConfig, part: str, dtype: str) -> ExportTarget:
    """Describes a checkpoint of a model type, without an original.

    Args:
        model_type: A registered model type, such as `llama`.
        model: The model.
        part: Name of one of its parts, such as `backbone`, or `model`.
        dtype: Type of all tensors, a key of DTYPE_NAMES.

    Raises:
        UserError: The model type is not known, or cannot compute the part.
    """
    architecture = find_architecture(model_type)
    config = config_in_published_form(architecture, model, model, module_of_part(model, part))
    config_json = write_architecture(architecture, config)
    return ExportTarget(
        architecture=architecture,
        config=config,
        matches=checkpoint_matches(architecture, config, model),
        config_json={**config_json, **_dtype_entry(config_json, dtype)},
        dtype=dtype,
    )


def _dtype_entry(config_json: Mapping[str, Any], dtype: str) -> dict[str, str]:
    """Returns the entry for the dtype: `dtype` since transformers 5, `torch_dtype` before; none in diffusers."""
    if "_class_name" in config_json:
        return {}
    return {"dtype" if "dtype" in config_json else "torch_dtype": dtype}


def export_checkpoint(
    target: ExportTarget,
    read_layer: ReadLayer,
    output: pathlib.Path,
    limit: int,
    callback: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """Writes a checkpoint. The host never holds more than one layer of the model and the tensors of one match.

    Args:
        target: The checkpoint.
        read_layer: Reads the model's parameters.
        output: The folder; it must not exist, or be empty.
        limit: Largest number of bytes of tensors in a file.
        callback: Called with the number of tensors that are written, and the number of all tensors.

    Returns:
        Names of the files with tensors.

    Raises:
        UserError: The folder is not empty, or a value is too large for its type.
    """
    matches = sorted(target.matches, key=lambda match: match.layer)
    converted_headers = {
        name: TensorHeader(_tensor_dtype(target, name), shape)
        for match in matches
        for first_name, shape in zip(match.tensor_names, match.tensor_shapes, strict=True)
        for name in _names_of_copies(target, first_name)
    }
    ignored = _ignored_tensors(target, converted_headers)
    headers = {**converted_headers, **{name: header for name, (header, _) in ignored.items()}}
    ignored_arrays = ((name, read()) for name, (_, read) in ignored.items())
    arrays = itertools.chain(_converted_tensors(target, matches, read_layer), ignored_arrays)
    file_names = {} if target.original is None else target.original.tensor_names
    files = write_checkpoint_folder(
        output,
        target.architecture.file_stem,
        {file_names.get(name, name): header for name, header in headers.items()},
        ((file_names.get(name, name), array) for name, array in _counted(arrays, len(headers), callback)),
        limit,
        {CONFIG_FILE: json.dumps(target.config_json, indent=2) + "\n"},
        _files_to_copy(target),
    )
    callback(len(headers), len(headers))
    return files


def _counted(
    arrays: Iterator[tuple[str, np.ndarray]], total: int, callback: Callable[[int, int], None]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the arrays; calls back before each with the number of arrays before it."""
    for done, named in enumerate(arrays):
        callback(done, total)
        yield named


def with_merged_adapters(read_layer: ReadLayer, config: ModelConfig) -> ReadLayer:
    """Wraps a reader so that it returns parameters with the model's LoRA adapters merged into them."""
    modules = {module.name: module for module in model_modules(config)}

    def read_merged(module: str, piece: str, layer: str) -> Tree:
        tree, lora = read_layer(module, piece, layer), config.lora_of(module)
        adapter_piece = modules[module].adapter_piece(piece)
        if lora is None or not adapter_piece:
            return tree
        return merge_layer_adapters(tree, read_layer(module, adapter_piece, layer), lora.scale)

    return read_merged


def _tensor_dtype(target: ExportTarget, name: str) -> str:
    """Returns the type in which a tensor is written: the target's, else the tensor's type in the original."""
    if target.dtype:
        return DTYPE_NAMES[target.dtype]
    original = target.original
    assert original is not None, "a target without an original has a dtype"
    if name not in original.tensor_names:
        return "F32"
    return original.folder.tensors[original.tensor_names[name]].dtype


def _names_of_copies(target: ExportTarget, name: str) -> tuple[str, ...]:
    """Returns a tensor's name, and the names under which the original holds copies of it."""
    duplicates = target.architecture.duplicates(target.config)
    original_names = () if target.original is None else target.original.tensor_names
    copies = (copy for copy, copied in duplicates.items() if copied == name and copy in original_names)
    return (name, *copies)


def _converted_tensors(
    target: ExportTarget, matches: list[TensorMatch], read_layer: ReadLayer
) -> Iterator[tuple[str, np.ndarray]]:
    for layer, layer_matches in itertools.groupby(matches, key=lambda match: match.layer):
        tree = read_layer(*layer)
        for match in layer_matches:
            parameters = tuple(get_leaf(tree, path) for path in match.paths_in_layer)
            tensors = match.layout.to_published(parameters)
            for first_name, tensor in zip(match.tensor_names, tensors, strict=True):
                for name in _names_of_copies(target, first_name):
                    yield name, _cast(name, tensor, _tensor_dtype(target, name))


def _cast(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        cast = contiguous_copy(array, DTYPES[dtype])
    is_finite = np.isfinite(cast)
    if not is_finite.all() and not np.array_equal(np.isfinite(array), is_finite):
        raise UserError(f"{name} has values up to {np.nanmax(np.abs(array)):.3g}, too large for {dtype}; use bfloat16")
    return cast


def _ignored_tensors(
    target: ExportTarget, converted: Mapping[str, TensorHeader]
) -> dict[str, tuple[TensorHeader, Callable[[], np.ndarray]]]:
    """Returns headers and readers of the original's tensors that have no parameter on purpose."""
    original = target.original
    if original is None:
        return {}
    return {
        name: (
            dataclasses.replace(original.folder.tensors[file_name], start=0),
            functools.partial(original.folder.read, file_name),
        )
        for name, file_name in original.tensor_names.items()
        if name not in converted and is_ignored_tensor(target.architecture, target.config, name)
    }


def _files_to_copy(target: ExportTarget) -> dict[str, pathlib.Path]:
    """Returns the original's files other than tensors, index and config.json, by their names in the folder."""
    if target.original is None:
        return {}
    path = target.original.folder.path
    files = {file for pattern in COPIED_FILES for file in path.glob(pattern) if file.is_file()}
    return {
        file.relative_to(path).as_posix(): file
        for file in sorted(files)
        if file.name != CONFIG_FILE and not file.name.endswith(".index.json")
    }
