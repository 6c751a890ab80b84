"""Which model a checkpoint is of: its architecture, told field by field where another one would load it."""

import dataclasses
import json
import pathlib
from typing import Any

from configs.architectures import ModelConfig
from configs.errors import UserError


def identity(config: ModelConfig) -> Any:
    """The model as JSON gives it back."""
    return _json(dataclasses.asdict(config))


def refuse_another_model(path: pathlib.Path, stored: Any, config: ModelConfig) -> None:
    """Raises UserError, with all that differs, if the identity stored with a checkpoint is another model's.

    A field that an older version did not know had its default then.
    """
    theirs, ours = {**_flat(_json(_defaults(config))), **_flat(stored)}, _flat(identity(config))
    differing = [name for name in ours | _flat(stored) if theirs.get(name) != ours.get(name)]
    if differing:
        details = ", ".join(f"{name} is {theirs.get(name)!r} there, {ours.get(name)!r} here" for name in differing)
        raise UserError(
            f"{path} is a checkpoint of another model: {details}; "
            "use the configuration it was trained with, or another workdir"
        )


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _defaults(value: Any) -> Any:
    """The defaults of the fields of a configuration and of those within it; fields without one are left out."""
    if isinstance(value, tuple):
        return dict(enumerate(map(_defaults, value))) if any(map(dataclasses.is_dataclass, value)) else {}
    if not dataclasses.is_dataclass(value):
        return {}
    found: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        below = _defaults(getattr(value, field.name))
        if below:
            found[field.name] = below
        elif field.default is not dataclasses.MISSING and _plain(field.default):
            found[field.name] = field.default
    return found


def _plain(value: Any) -> bool:
    return not any(map(dataclasses.is_dataclass, value if isinstance(value, tuple) else (value,)))


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """`{"backbone.width": 128, "generators.0.widths": [32, 64], ...}`."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {name: value}
    return {
        key: leaf for part, below in value.items() for key, leaf in _flat(below, f"{name}.{part}".lstrip(".")).items()
    }
