"""The identity of a checkpoint's model: its architecture, compared field by field before a model loads the checkpoint.

It is written with every save and compared at every restore, before an array is read.
"""

import dataclasses
import json
import logging
import pathlib
from typing import Any

from configs.architectures import ModelConfig
from configs.common.errors import UserError
from configs.training_choices import TRAINING_CHOICES

_LOG = logging.getLogger(__name__)

KIND = "kind"
"""Key of the name of a configuration's class: two kinds of noise schedule may have the same fields."""

LOSS = "loss"
"""Field of a configuration that is a function, which is stored as text."""

CHOICES_OF_RUN = (*TRAINING_CHOICES, "dtype")
"""Fields that decide how a module trains and not what its weights mean; a resumed run may change them."""


def model_identity(config: ModelConfig) -> Any:
    """The model as nested JSON objects, as `json.loads` gives them back."""
    return json.loads(json.dumps(_to_document(config)))


def check_same_model(path: pathlib.Path, stored: Any, config: ModelConfig) -> None:
    """Raises UserError, naming all that differs, if the identity stored with a checkpoint is another model's.

    A field that an older version did not have counts as having its default. Another loss, or another choice of how
    the model trains (`CHOICES_OF_RUN`), is accepted with a warning.
    """
    stored_fields = _flat(json.loads(json.dumps(_with_defaults(stored, config))))
    fields = _flat(model_identity(config))
    differing = [name for name in fields | stored_fields if stored_fields.get(name) != fields.get(name)]

    def details(names: list[str]) -> str:
        return ", ".join(f"{name} is {stored_fields.get(name)!r} there, {fields.get(name)!r} here" for name in names)

    choices = [name for name in differing if name.split(".")[-1] in CHOICES_OF_RUN]
    if architecture := [name for name in differing if name not in choices]:
        raise UserError(
            f"{path} is a checkpoint of another model: {details(architecture)}; "
            "use the configuration it was trained with, or another workdir"
        )
    if choices:
        _LOG.warning("%s was trained otherwise: %s", path, details(choices))


def _to_document(value: Any) -> Any:
    """Configurations as dictionaries that have their kind too."""
    if isinstance(value, tuple):
        return [_to_document(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    fields = {field.name: _to_document(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if LOSS in fields:
        fields[LOSS] = _describe_loss(getattr(value, LOSS))
    return {KIND: type(value).__name__, **fields}


def _describe_loss(loss: Any) -> str | None:
    """A loss function as text: a dataclass with its fields, else the name of the function or class."""
    if loss is None:
        return None
    if dataclasses.is_dataclass(loss):
        return repr(loss)
    return getattr(loss, "__qualname__", type(loss).__qualname__)


def _with_defaults(stored: Any, config: Any) -> Any:
    """Completes a stored identity with the defaults of fields that it lacks, in objects of the configuration's kind.

    An object stored without any field stays as it is.
    """
    if isinstance(stored, list) and isinstance(config, tuple):
        return [*(_with_defaults(*pair) for pair in zip(stored, config, strict=False)), *stored[len(config) :]]
    if not isinstance(stored, dict) or not dataclasses.is_dataclass(config):
        return stored
    fields = dataclasses.fields(config)
    if fields and not stored:
        return stored
    defaults = {field.name: _to_document(field.default) for field in fields if field.default is not dataclasses.MISSING}
    known = {name: _with_defaults(value, getattr(config, name, None)) for name, value in stored.items()}
    return {KIND: type(config).__name__, **defaults, **known}


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """`{"backbone.width": 128, "generators.0.widths": [32, 64], ...}`."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {name: value}
    return {
        leaf_name: leaf
        for key, child in value.items()
        for leaf_name, leaf in _flat(child, f"{name}.{key}".lstrip(".")).items()
    }
