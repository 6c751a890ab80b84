"""The known published architectures: every `PUBLISHED` tuple in the modules of `mmjax.weights.published`.

`open_checkpoint` finds the architecture of a config.json here, and an export the architecture of a model type.
"""

import functools
import importlib
import pkgutil
import re
from collections.abc import Mapping
from typing import Any

from configs.common.errors import UserError
from configs.common.shown_text import shortened
from mmjax.weights import published as package
from mmjax.weights.published.config_ranges import CheckedValues, shown
from mmjax.weights.published.rules import Config, PublishedArchitecture

TYPE_KEYS = ("model_type", "_class_name", "architecture")
"""Keys that name the architecture in a config.json of transformers, diffusers and timm."""


@functools.cache
def all_architectures() -> tuple[PublishedArchitecture, ...]:
    """Every published architecture, in the order of module names."""
    names = sorted(module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
    modules = [importlib.import_module(name) for name in names]
    return tuple(architecture for module in modules for architecture in getattr(module, "PUBLISHED", ()))


def model_type_of(config_json: Mapping[str, Any]) -> str | None:
    """Returns the model type that a config.json names; None if it names none.

    InternVL's authors call all of their models `internvl_chat`, although the tensor names depend on the decoder that
    `llm_config` describes; such a model type is returned as `internvl_chat/internlm2`.
    """
    values = CheckedValues(config_json)
    model_type = next((values[key] for key in TYPE_KEYS if values.get(key)), None)
    decoder_type = (values.get("llm_config") or {}).get("model_type")
    return f"{model_type}/{decoder_type}" if model_type and decoder_type else model_type


def find_architecture(model_type: str) -> PublishedArchitecture:
    """Finds the architecture of a model type.

    Raises:
        UserError: No architecture has it; the message names the model types of its family, if there are some.
    """
    known = {name: architecture for architecture in all_architectures() for name in architecture.model_types}
    if model_type in known:
        return known[model_type]
    relatives = sorted(name for name in known if model_family(name) == model_family(model_type))
    family = f"of its family {', '.join(relatives)} {'are' if relatives[1:] else 'is'}, and " if relatives else ""
    raise UserError(
        f"the architecture {shown(model_type)} is not known; {family}"
        f"docs/how_to/weights.md lists all {len(known)} that are known"
    )


def model_family(model_type: str) -> str:
    """Returns the family of a model type, its leading letters, such as `qwen` of `qwen2_5_vl`."""
    letters = re.match(r"[a-z]*", model_type.lower())
    return letters.group() if letters else ""


def read_architecture(config_json: Mapping[str, Any]) -> tuple[PublishedArchitecture, Config]:
    """Reads the architecture that a config.json names, and the configuration that it describes.

    Raises:
        UserError: The architecture is not known, the weights are quantised, a key has a value of another type or out
            of its range, or mmjax cannot compute the configuration.
    """
    try:
        model_type = model_type_of(config_json)
    except ValueError as error:
        raise UserError(f"config.json: {error}") from error
    if model_type is None:
        raise UserError(f"config.json names no architecture: it has none of {', '.join(TYPE_KEYS)}")
    architecture = find_architecture(model_type)
    if quantisation := config_json.get("quantization_config"):
        method = (
            quantisation.get("quant_method", "unknown method") if isinstance(quantisation, Mapping) else quantisation
        )
        raise UserError(
            f"the weights are quantised ({method}), which cannot be read; use the checkpoint that they were made from"
        )
    try:
        return architecture, architecture.read_config(CheckedValues(config_json))
    except (ValueError, UserError) as error:
        raise UserError(f"config.json of {model_type}: {shortened(str(error))}") from error
    except KeyError as error:
        raise UserError(f"config.json of {model_type} has no key {error}") from error
    except (TypeError, AttributeError, ArithmeticError, IndexError) as error:  # of values that do not go together
        nulls = [key for key, value in config_json.items() if value is None]
        hint = f"; these are null, and may not all be: {', '.join(nulls)}" if nulls else ""
        raise UserError(f"config.json of {model_type}: {shortened(f'{error}{hint}')}") from error


def write_architecture(architecture: PublishedArchitecture, config: Config) -> dict[str, Any]:
    """Writes the config.json of a configuration, without its dtype.

    Raises:
        UserError: The published architecture cannot compute the configuration.
    """
    try:
        values = architecture.write_config(config)
    except ValueError as error:
        raise UserError(f"{architecture.name} can't compute this architecture: {error}") from error
    if "_class_name" in values or "architecture" in values:
        return values
    return {"architectures": [architecture.name], "model_type": architecture.model_types[0], **values}
