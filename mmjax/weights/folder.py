"""The folder of a published checkpoint: config.json and one safetensors file, or several with an index.

Reading looks at headers first and maps tensors into memory. Writing takes tensors one at a time, puts them into files
of a bounded size, and gives the folder its name only when it is whole. `published_checkpoint.py` reads by it, and
`export.py` writes.
"""

import dataclasses
import json
import logging
import pathlib
import re
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from configs.common.errors import UserError
from configs.common.strict_json import read_json_file
from mmjax.weights.safetensors_file import TensorHeader, read_header, read_tensor, write_safetensors

_LOG = logging.getLogger(__name__)

CONFIG_FILE = "config.json"

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclasses.dataclass(frozen=True)
class CheckpointFolder:
    """The tensors of a folder, of which only the headers have been read.

    Attributes:
        path: Path of the folder.
        files: File that each tensor is in, by the tensor's name.
        tensors: Header of each tensor, by its name.
    """

    path: pathlib.Path
    files: dict[str, pathlib.Path]
    tensors: dict[str, TensorHeader]

    def read(self, name: str, part: tuple[slice, ...] | None = None) -> np.ndarray:
        """Maps a tensor, or a slice of it, into memory."""
        return read_tensor(self.files[name], self.tensors[name], part)


def read_config_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads the config.json of a folder.

    Raises:
        UserError: The folder does not exist, has no config.json, or the file cannot be read.
    """
    if not path.is_dir():
        raise UserError(f"there is no folder {path}; weights are read from a local folder, not downloaded by name")
    if not (path / CONFIG_FILE).is_file():
        raise UserError(f"{path} has no {CONFIG_FILE}; give the folder of a published checkpoint")
    return _read_json(path / CONFIG_FILE)


def open_folder(path: pathlib.Path, stem: str, index_first: bool = False) -> CheckpointFolder:
    """Reads the headers of a folder's safetensors files.

    A folder that was saved into twice may have a single file and the index of an earlier save. The one that the
    library of the format reads counts, and a warning names both.

    Args:
        path: The folder.
        stem: Stem of the file names, such as `model`.
        index_first: Whether the index counts where both are there, as in diffusers; in transformers the single file.

    Raises:
        UserError: The folder has no safetensors (pickles are refused), its index names a missing tensor or a file
            outside the folder, or a file is damaged (`read_header`).
    """
    index, single = path / f"{stem}.safetensors.index.json", path / f"{stem}.safetensors"
    files = [file for file in ((index, single) if index_first else (single, index)) if file.is_file()]
    if len(files) == 2:
        _LOG.warning("%s has %s too, which is not read: %s counts", path, files[1].name, files[0].name)
    if files and files[0] == index:
        return _open_indexed(path, index)
    if files:
        tensors = read_header(single)
        return CheckpointFolder(path, dict.fromkeys(tensors, single), tensors)
    pickles = sorted(file.name for pattern in PICKLES for file in path.glob(pattern))
    if pickles:
        raise UserError(
            f"{path} has {', '.join(pickles)} and no {single.name}: these are pickles, and reading one runs whatever "
            "code is in it. Use the safetensors of the checkpoint, or load it where you trust it and save it again"
        )
    raise UserError(f"{path} has neither {single.name} nor {index.name}")


def _open_indexed(path: pathlib.Path, index: pathlib.Path) -> CheckpointFolder:
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise UserError(f"{index} has no weight_map, so that no tensor can be found")
    outside = next((file for file in weight_map.values() if not _is_name_in_folder(file)), None)
    if outside is not None:
        raise UserError(f"{index} names {outside!r:.60}, which is no file of the folder; copy the checkpoint again")
    shards = {file: path / file for file in sorted(set(weight_map.values()))}
    missing_files = [file for file, shard in shards.items() if not shard.is_file()]
    if missing_files:
        raise UserError(
            f"{index} names {', '.join(missing_files)}, which the folder does not have; the copy is not complete"
        )
    headers = {file: read_header(shard) for file, shard in shards.items()}
    missing_tensors = [f"{name} in {file}" for name, file in weight_map.items() if name not in headers[file]]
    if missing_tensors:
        raise UserError(f"{index} names tensors that are not in their files: {', '.join(missing_tensors)}")
    return CheckpointFolder(
        path,
        {name: shards[file] for name, file in weight_map.items()},
        {name: headers[file][name] for name, file in weight_map.items()},
    )


def _is_name_in_folder(name: object) -> bool:
    """Whether a text names a file in the folder or below it: an index may not make other files be read."""
    if not isinstance(name, str) or "\0" in name:
        return False
    parts = pathlib.PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    values = read_json_file(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} is not a JSON object")
    return values


def parse_file_size(text: str) -> int:
    """Parses a size such as `5GB` (10⁹) or `5GiB` (2³⁰), in bytes.

    Raises:
        UserError: The text is not a size.
    """
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip())
    if not match or match[2].upper() not in UNITS or not int(match[1]):
        raise UserError(f"{text!r} is not a file size; write one such as 5GB or 500MiB")
    return int(match[1]) * UNITS[match[2].upper()]


def shard_tensors(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Distributes tensors over files in their order: a file ends where the next tensor would take it over the limit.

    Args:
        sizes: Bytes of each tensor, by name.
        limit: Largest number of bytes of a file; a larger tensor has a file of its own.
    """
    files: list[list[str]] = [[]]
    file_size = 0
    for name, size in sizes.items():
        if files[-1] and file_size + size > limit:
            files.append([])
            file_size = 0
        files[-1].append(name)
        file_size += size
    return files


def write_checkpoint_folder(
    output: pathlib.Path,
    stem: str,
    headers: Mapping[str, TensorHeader],
    arrays: Iterator[tuple[str, np.ndarray]],
    limit: int,
    texts: Mapping[str, str] | None = None,
    copies: Mapping[str, pathlib.Path] | None = None,
) -> list[str]:
    """Writes a folder under a temporary name, and renames it when it is whole.

    Args:
        output: The folder; it must not exist, or be empty.
        stem: Stem of the file names, such as `model`.
        headers: Type and shape of every tensor, in the order of `arrays`.
        arrays: Names and values, consumed one at a time.
        limit: Largest number of bytes of tensors in a file.
        texts: Contents of other files by name, such as config.json.
        copies: Files to copy into the folder, by their names in it.

    Returns:
        Names of the files with tensors.

    Raises:
        UserError: The folder is not empty.
    """
    require_empty_folder(output)
    shards = shard_tensors({name: header.size for name, header in headers.items()}, limit)
    files = [f"{stem}.safetensors"]
    if len(shards) > 1:
        files = [f"{stem}-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    unfinished = output.with_name(f".{output.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # left by a process that was killed
    unfinished.mkdir(parents=True)
    try:
        for file, names in zip(files, shards, strict=True):
            write_safetensors(unfinished / file, {name: headers[name] for name in names}, _take(arrays, len(names)))
        if len(shards) > 1:
            total = sum(header.size for header in headers.values())
            weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
            (unfinished / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
        for name, copied in (copies or {}).items():
            (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(copied, unfinished / name)
        for name, text in (texts or {}).items():
            (unfinished / name).write_text(text)
        unfinished.replace(output)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return files


def require_empty_folder(output: pathlib.Path) -> None:
    """Raises UserError if a path exists and is not an empty folder."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} exists and is not empty; name another folder, or remove it")


def _take(arrays: Iterator[tuple[str, np.ndarray]], count: int) -> Iterator[tuple[str, np.ndarray]]:
    for _ in range(count):
        yield next(arrays)
