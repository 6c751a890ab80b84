"""Which published architectures there are: every file of this package that has `PUBLISHED`, a tuple of them."""

import difflib
import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from configs.errors import UserError
from mmjax.weights import published as package
from mmjax.weights.published.rules import Config, PublishedArchitecture

TYPE_KEYS = ("model_type", "_class_name", "architecture")
"""What names the architecture in a config.json of transformers, diffusers and timm."""


@functools.cache
def all_architectures() -> tuple[PublishedArchitecture, ...]:
    """Every architecture, by file."""
    names = sorted(module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
    modules = [importlib.import_module(name) for name in names]
    return tuple(each for module in modules for each in getattr(module, "PUBLISHED", ()))


def model_type_of(values: Mapping[str, Any]) -> str | None:
    """What a config.json says it describes; None if it says nothing.

    InternVL's authors call all of theirs `internvl_chat`, whose tensors are named after what their `llm_config` is:
    `internvl_chat/internlm2`.
    """
    called = next((str(values[key]) for key in TYPE_KEYS if values.get(key)), None)
    within = (values.get("llm_config") or {}).get("model_type")
    return f"{called}/{within}" if called and within else called


def find_architecture(model_type: str) -> PublishedArchitecture:
    """The architecture of a model type.

    Raises:
        UserError: None has it; the nearest that is known is named.
    """
    known = {of: published for published in all_architectures() for of in published.model_types}
    if model_type in known:
        return known[model_type]
    near = difflib.get_close_matches(model_type, known, n=1, cutoff=0.0)
    raise UserError(
        f"the architecture {model_type!r} is not known; the nearest that is known is {near[0]!r}, "
        f"and all are {', '.join(sorted(known))}"
    )


def read_architecture(values: Mapping[str, Any]) -> tuple[PublishedArchitecture, Config]:
    """The architecture of a config.json, and what it describes.

    Raises:
        UserError: It is not known, or it asks for what we can't compute.
    """
    model_type = model_type_of(values)
    if model_type is None:
        raise UserError(f"config.json names no architecture: it has none of {', '.join(TYPE_KEYS)}")
    published = find_architecture(model_type)
    if quantised := values.get("quantization_config"):
        method = quantised.get("quant_method", "some method") if isinstance(quantised, Mapping) else quantised
        raise UserError(
            f"the weights are quantised ({method}), which is not read; take the checkpoint that they were made from"
        )
    try:
        return published, published.read_config(values)
    except ValueError as error:
        raise UserError(f"config.json of {model_type}: {error}") from error
    except KeyError as error:
        raise UserError(f"config.json of {model_type} lacks {error}") from error


def write_architecture(published: PublishedArchitecture, config: Config) -> dict[str, Any]:
    """The config.json of an architecture, without its dtype.

    Raises:
        UserError: The published architecture can't compute it.
    """
    try:
        values = published.write_config(config)
    except ValueError as error:
        raise UserError(f"{published.name} can't compute this architecture: {error}") from error
    if "_class_name" in values or "architecture" in values:
        return values
    return {"architectures": [published.name], "model_type": published.model_types[0], **values}
