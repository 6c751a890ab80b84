"""A folder of a published checkpoint: config.json beside one safetensors file, or several with an index."""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

from configs.errors import UserError
from mmjax.weights.safetensors_file import TensorHeader, read_header, read_tensor

CONFIG_FILE = "config.json"
PREPROCESSOR = "preprocessor_config.json"
PIXELS = ("image_mean", "image_std")
"""What of it is an architecture's: how pixels are normalised."""


@dataclasses.dataclass(frozen=True)
class CheckpointFolder:
    """The tensors of a folder, of which only the headers have been read.

    Attributes:
        path: Of the folder.
        files: By name of a tensor, the file it is in.
        tensors: By name, what it is.
    """

    path: pathlib.Path
    files: dict[str, pathlib.Path]
    tensors: dict[str, TensorHeader]

    def read(self, name: str, part: tuple[slice, ...] | None = None) -> np.ndarray:
        """A tensor, or a part of it, mapped into memory."""
        return read_tensor(self.files[name], self.tensors[name], part)


def read_config_json(path: pathlib.Path) -> dict[str, Any]:
    """The config.json of a folder.

    Raises:
        UserError: There is no such folder, it has none, or it can't be read.
    """
    if not path.is_dir():
        raise UserError(f"there is no folder {path}; weights are read from a folder that you have, not fetched by name")
    if not (path / CONFIG_FILE).is_file():
        raise UserError(f"{path} has no {CONFIG_FILE}; give the folder of a published checkpoint")
    return _json(path / CONFIG_FILE)


def read_pixel_normalisation(path: pathlib.Path) -> dict[str, Any]:
    """What the preprocessor_config.json of a folder says of pixels; nothing where there is none."""
    values = _json(path / PREPROCESSOR) if (path / PREPROCESSOR).is_file() else {}
    return {key: values[key] for key in PIXELS if key in values}


def open_folder(path: pathlib.Path, stem: str) -> CheckpointFolder:
    """Reads the headers of a folder's files.

    Args:
        path: The folder.
        stem: Of the files' names, such as `model`.

    Raises:
        UserError: No safetensors there (pickles are refused), an index that names a file or a tensor that is not there,
            a file that is cut off.
    """
    index, single = path / f"{stem}.safetensors.index.json", path / f"{stem}.safetensors"
    if index.is_file():
        return _indexed(path, index)
    if single.is_file():
        tensors = read_header(single)
        return CheckpointFolder(path, dict.fromkeys(tensors, single), tensors)
    pickles = sorted(file.name for suffix in ("*.bin", "*.pt", "*.pth", "*.ckpt") for file in path.glob(suffix))
    if pickles:
        raise UserError(
            f"{path} has {', '.join(pickles)} and no {single.name}: these are pickles, and reading one runs whatever "
            "code is in it. Take the safetensors of the checkpoint, or load it where you trust it and save it anew"
        )
    raise UserError(f"{path} has neither {single.name} nor {index.name}")


def _indexed(path: pathlib.Path, index: pathlib.Path) -> CheckpointFolder:
    places = _json(index).get("weight_map")
    if not isinstance(places, dict):
        raise UserError(f"{index} has no weight_map, so that no tensor can be found")
    shards = {file: path / file for file in sorted(set(places.values()))}
    absent = [file for file, at in shards.items() if not at.is_file()]
    if absent:
        raise UserError(f"{index} names {', '.join(absent)}, which the folder does not have; the copy is not whole")
    headers = {file: read_header(at) for file, at in shards.items()}
    lost = [f"{name} in {file}" for name, file in places.items() if name not in headers[file]]
    if lost:
        raise UserError(f"{index} names tensors that are not in their files: {', '.join(lost)}")
    return CheckpointFolder(
        path,
        {name: shards[file] for name, file in places.items()},
        {name: headers[file][name] for name, file in places.items()},
    )


def _json(path: pathlib.Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} can't be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} is no JSON object")
    return values
