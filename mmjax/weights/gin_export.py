"""Export of a configuration as gin text, so that the architecture of a published checkpoint can be trained.

The command `mmjax.convert` prints it.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from configs import architectures
from configs.architectures import ModelConfig
from mmjax.weights.published.rules import Config

HEADER = "from __gin__ import dynamic_registration\n\n"
SETTINGS = frozenset({"name", "loss", "dtype", "lora"})
"""Fields that say how a checkpoint is used; fields with their defaults are left for other files to bind."""

PROJECTORS = frozenset({"projector", "deepstack_projector"})
"""Such fields of an encoder without a backbone."""

WEIGHTS_COMMENT = (
    "# If several files bind this, the last one wins: to start from several folders, list them in one binding."
)


@dataclasses.dataclass(frozen=True)
class _ScopedConfig:
    """A configuration and the gin scope that it is bound in.

    The scope is the configuration's name where a tuple has several of its kind, and ends in the name of its field where
    the model has other values of its kind; else it is empty.
    """

    config: Any
    scope: str
    repeated: frozenset[type]
    settings: frozenset[str]

    @property
    def selector(self) -> str:
        kind = type(self.config)
        return f"{self.scope}{_module_name(kind)}.{kind.__name__}"

    def bindings(self) -> dict[str, Any]:
        """All fields but settings that have their defaults, with configurations scoped."""
        values = {field.name: (getattr(self.config, field.name), field.default) for field in _fields(self.config)}
        return {
            name: self._scope_value(name, value)
            for name, (value, default) in values.items()
            if value != default or name not in self.settings
        }

    def _scope_value(self, field: str, value: Any) -> Any:
        if isinstance(value, tuple):
            kinds = [type(element) for element in value]
            return tuple(
                dataclasses.replace(self, config=element, scope=f"{element.name}/")
                if _fields(element) and kinds.count(type(element)) > 1
                else self._scope_value("", element)
                for element in value
            )
        if not dataclasses.is_dataclass(value):
            return value
        scope = self.scope
        if field and type(value) in self.repeated:
            name = getattr(self.config, "name", "")
            scope = f"{self.scope or (name and f'{name}/')}{field}/"
        return dataclasses.replace(self, config=value, scope=scope)


def _repeated_kinds(config: Config) -> frozenset[type]:
    """Returns the kinds of which a configuration contains several values."""
    values = list(dict.fromkeys(_configs_within(config)))
    kinds = [type(value) for value in values]
    return frozenset(kind for kind in kinds if kinds.count(kind) > 1)


def _configs_within(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for element in value:
            yield from _configs_within(element)
    elif dataclasses.is_dataclass(value):
        yield value
        yield from _configs_within(tuple(getattr(value, field.name) for field in _fields(value)))


def _fields(value: Any) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()


def gin_text(config: Config, weights: tuple[tuple[str, str], ...] = ()) -> str:
    """Returns gin bindings of a whole architecture, which override the bindings of other files.

    The text is for `--gin_file`, used together with a file that names the data.

    Args:
        config: Configuration of a module, or a ModelConfig.
        weights: Value of `TrainConfig.pretrained_weights`.
    """
    settings = SETTINGS if isinstance(config, ModelConfig) else SETTINGS | PROJECTORS
    configs = list(_nested_configs(_ScopedConfig(config, "", _repeated_kinds(config), settings)))
    blocks = [block for block in map(_binding_block, configs) if block]
    imports = {_import_line(type(scoped.config)) for scoped in configs}
    if weights:
        imports.add("from mmjax.training import config")
        blocks.append(f"{WEIGHTS_COMMENT}\nconfig.TrainConfig.pretrained_weights = {weights!r}\n")
    return HEADER + "\n".join(sorted(imports)) + "\n\n" + "\n".join(blocks)


def _nested_configs(value: Any) -> Iterator[_ScopedConfig]:
    """Yields a scoped configuration and all configurations within it."""
    if isinstance(value, tuple):
        for element in value:
            yield from _nested_configs(element)
    elif isinstance(value, _ScopedConfig):
        yield value
        yield from _nested_configs(tuple(value.bindings().values()))


def _binding_block(scoped: _ScopedConfig) -> str:
    lines = [f"  {name} = {_gin_value(value)}\n" for name, value in scoped.bindings().items()]
    return f"{scoped.selector}:\n{''.join(lines)}" if lines else ""


def _gin_value(value: Any) -> str:
    if isinstance(value, tuple):
        elements = [_gin_value(element) for element in value]
        return f"({elements[0]},)" if len(elements) == 1 else f"({', '.join(elements)})"
    return f"@{value.selector}()" if isinstance(value, _ScopedConfig) else repr(value)


def _module_name(kind: type) -> str:
    """Returns the module by which gin files name a type: `architectures` has most of them."""
    return _module(kind).rpartition(".")[2]


def _import_line(kind: type) -> str:
    package, _, name = _module(kind).rpartition(".")
    return f"from {package} import {name}"


def _module(kind: type) -> str:
    is_there = hasattr(architectures, kind.__name__)
    return architectures.__name__ if is_there else kind.__module__
