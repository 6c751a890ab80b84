"""The JSON files of a checkpoint: their names, contents, reading and writing.

They lie beside the arrays: the host's state, such as the place in the data, and the identity of the model.
"""

import dataclasses
import json
import os
import pathlib
from typing import Any

from configs.common.errors import UserError
from configs.common.strict_json import parse_json, read_bounded

MODEL_FILE = "model.json"
"""File of a checkpoint with the model's configuration, the pieces that trained, and the kind of optimizer state."""

HOST_FILE = "host.json"
"""File of a checkpoint with the state of the data pipeline and of the metrics."""

FORMAT = 1
"""Version of the layout of checkpoints; it grows when earlier versions of mmjax cannot read new checkpoints."""

JsonDocument = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ModelDocument:
    """The contents of `model.json`: the identity of a checkpoint's model, and of its optimizer state.

    Attributes:
        model: The model's identity (`model_identity`).
        trained: Keys `module/piece` of all pieces that have optimizer state.
        optimizer: Name of the algorithm that the optimizer state is of.
        moment_dtype: Type of its moments.
    """

    model: Any
    trained: frozenset[str]
    optimizer: str
    moment_dtype: str

    @classmethod
    def read(cls, checkpoint: pathlib.Path) -> "ModelDocument":
        """Reads it from a checkpoint; raises UserError if it is of another format or holds something else."""
        document = read_json_object(checkpoint / MODEL_FILE)
        if document.get("format") != FORMAT:
            raise UserError(
                f"{checkpoint} has the checkpoint format {document.get('format')!r:.40}, and this version of mmjax "
                f"reads format {FORMAT}; use the version that wrote it"
            )
        trained, optimizer, moment_dtype = (document.get(key) for key in ("trained", "optimizer", "moment_dtype"))
        keys = [key for key in trained if isinstance(key, str)] if isinstance(trained, list) else None
        if keys is None or keys != trained or not isinstance(optimizer, str) or not isinstance(moment_dtype, str):
            raise UserError(f"{checkpoint / MODEL_FILE} does not say what trained and by which algorithm")
        return cls(document.get("model"), frozenset(keys), optimizer, moment_dtype)

    def document(self) -> JsonDocument:
        """Returns the JSON document that `read` reads."""
        return {
            "format": FORMAT,
            "model": self.model,
            "trained": sorted(self.trained),
            "optimizer": self.optimizer,
            "moment_dtype": self.moment_dtype,
        }


def read_json_object(path: pathlib.Path) -> JsonDocument:
    """The JSON object in a file; raises UserError, naming the file, if it holds none."""
    document = parse_json(read_bounded(path), os.fspath(path), finite=False)
    if not isinstance(document, dict):
        raise UserError(f"{path} holds {type(document).__name__}, not an object")
    return document


def write_json_file(path: pathlib.Path, document: JsonDocument) -> None:
    """Writes a document to a file."""
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
