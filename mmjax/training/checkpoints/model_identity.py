"""Which model a checkpoint is of: its architecture, told field by field where another one would load it."""

import dataclasses
import json
import pathlib
from typing import Any

from configs.architectures import ModelConfig
from configs.errors import UserError

KIND = "kind"
"""What the name of a configuration's class stands under: two noise schedules or stretched rotations may look alike."""


def model_identity(config: ModelConfig) -> Any:
    """The model as JSON gives it back."""
    return json.loads(json.dumps(_told(config)))


def check_same_model(path: pathlib.Path, stored: Any, config: ModelConfig) -> None:
    """Raises UserError, with all that differs, if the identity stored with a checkpoint is another model's.

    A field that an older version did not know had its default then.
    """
    theirs, ours = _flat(json.loads(json.dumps(_completed(stored, config)))), _flat(model_identity(config))
    differing = [name for name in ours | theirs if theirs.get(name) != ours.get(name)]
    if differing:
        details = ", ".join(f"{name} is {theirs.get(name)!r} there, {ours.get(name)!r} here" for name in differing)
        raise UserError(
            f"{path} is a checkpoint of another model: {details}; "
            "use the configuration it was trained with, or another workdir"
        )


def _told(value: Any) -> Any:
    """Configurations as dictionaries that say their kind too."""
    if isinstance(value, tuple):
        return [_told(each) for each in value]
    if not dataclasses.is_dataclass(value):
        return value
    return {KIND: type(value).__name__, **{of.name: _told(getattr(value, of.name)) for of in dataclasses.fields(value)}}


def _completed(stored: Any, ours: Any) -> Any:
    """What is stored, with the fields it lacks as they are by default; only where something of that kind is stored."""
    if isinstance(stored, list) and isinstance(ours, tuple):
        return [*(_completed(*each) for each in zip(stored, ours, strict=False)), *stored[len(ours) :]]
    if not isinstance(stored, dict) or not dataclasses.is_dataclass(ours):
        return stored
    fields = dataclasses.fields(ours)
    if fields and not stored:
        return stored
    defaults = {of.name: _told(of.default) for of in fields if of.default is not dataclasses.MISSING}
    known = {name: _completed(value, getattr(ours, name, None)) for name, value in stored.items()}
    return {KIND: type(ours).__name__, **defaults, **known}


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """`{"backbone.width": 128, "generators.0.widths": [32, 64], ...}`."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {name: value}
    return {
        key: leaf for part, below in value.items() for key, leaf in _flat(below, f"{name}.{part}".lstrip(".")).items()
    }
