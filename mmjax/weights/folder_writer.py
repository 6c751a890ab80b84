"""Writing a folder of a published checkpoint: tensors one at a time, in files of a bounded size, all or nothing."""

import json
import pathlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from configs.errors import UserError
from mmjax.weights.safetensors_file import TensorHeader, write_safetensors

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_file_size(text: str) -> int:
    """Bytes of a size such as `5GB` (10⁹) or `5GiB` (2³⁰).

    Raises:
        UserError: It is none.
    """
    found = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip())
    if not found or found[2].upper() not in UNITS or not int(found[1]):
        raise UserError(f"{text!r} is no size of a file; write one such as 5GB or 500MiB")
    return int(found[1]) * UNITS[found[2].upper()]


def shard_tensors(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Tensors by file, in their order: a file is full when the next would take it over the limit.

    A tensor above the limit has a file of its own.
    """
    files: list[list[str]] = [[]]
    held = 0
    for name, size in sizes.items():
        if files[-1] and held + size > limit:
            files.append([])
            held = 0
        files[-1].append(name)
        held += size
    return files


def write_checkpoint_folder(
    output: pathlib.Path,
    stem: str,
    declared: Mapping[str, TensorHeader],
    arrays: Iterator[tuple[str, np.ndarray]],
    limit: int,
    beside: Mapping[str, str] | None = None,
    copies: Iterable[pathlib.Path] = (),
) -> list[str]:
    """Writes a folder under another name and renames it when it is whole.

    Args:
        output: The folder; it must not exist, or be empty.
        stem: Of the files' names, such as `model`.
        declared: Type and shape of every tensor, in the order of `arrays`.
        arrays: Names and values, taken one after the other.
        limit: Bytes of a file's tensors.
        beside: Texts of other files by name, such as config.json.
        copies: Files to copy.

    Returns:
        Names of the files with tensors.

    Raises:
        UserError: The folder holds something already.
    """
    require_empty_folder(output)
    groups = shard_tensors({name: tensor.size for name, tensor in declared.items()}, limit)
    names = [f"{stem}.safetensors"]
    if len(groups) > 1:
        names = [f"{stem}-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
    unfinished = output.with_name(f".{output.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was killed
    unfinished.mkdir(parents=True)
    try:
        for name, group in zip(names, groups, strict=True):
            write_safetensors(unfinished / name, {each: declared[each] for each in group}, _take(arrays, len(group)))
        if len(groups) > 1:
            total = sum(tensor.size for tensor in declared.values())
            places = {each: name for name, group in zip(names, groups, strict=True) for each in group}
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
            (unfinished / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
        for file in copies:
            shutil.copyfile(file, unfinished / file.name)
        for name, text in (beside or {}).items():
            (unfinished / name).write_text(text)
        unfinished.replace(output)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return names


def require_empty_folder(output: pathlib.Path) -> None:
    """Raises UserError where a folder would be written over."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} is there already and not empty; name another folder, or remove it")


def _take(arrays: Iterator[tuple[str, np.ndarray]], count: int) -> Iterator[tuple[str, np.ndarray]]:
    for _ in range(count):
        yield next(arrays)
