"""An architecture as gin text, so that what a published checkpoint holds can be trained."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from configs import architectures
from configs.architectures import ModelConfig
from mmjax.weights.published.rules import Config

HEAD = "from __gin__ import dynamic_registration\n\n"
TOGETHER = "# Of several files that say this, the last one wins: to start from several folders, name them all in one."


@dataclasses.dataclass(frozen=True)
class _Scoped:
    """A dataclass and the gin scope that it is bound in: its name where there are several of its kind, else none."""

    config: Any
    scope: str

    @property
    def selector(self) -> str:
        kind = type(self.config)
        return f"{self.scope}{_module(kind)}.{kind.__name__}"

    def fields(self) -> dict[str, Any]:
        """What is not as by default, with dataclasses in it scoped; of a ModelConfig everything."""
        values = {field.name: (getattr(self.config, field.name), field.default) for field in _fields(self.config)}
        return {
            name: self._scoped(value)
            for name, (value, default) in values.items()
            if value != default or isinstance(self.config, ModelConfig)
        }

    def _scoped(self, value: Any) -> Any:
        if isinstance(value, tuple):
            kinds = [type(each) for each in value]
            return tuple(
                _Scoped(each, f"{each.name}/") if _fields(each) and kinds.count(type(each)) > 1 else self._scoped(each)
                for each in value
            )
        return _Scoped(value, self.scope) if _fields(value) else value


def _fields(value: Any) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()


def gin_text(config: Config, weights: tuple[tuple[str, str], ...] = ()) -> str:
    """Bindings of what differs from the defaults; a file for `--gin_file` beside one that names the data.

    Args:
        config: A module's architecture, or a ModelConfig.
        weights: Of `TrainConfig.pretrained_weights`.
    """
    held = list(_within(_Scoped(config, "")))
    blocks = [block for block in map(_block, held) if block]
    imports = {_import(type(each.config)) for each in held}
    if weights:
        imports.add("from mmjax.training import config")
        blocks.append(f"{TOGETHER}\nconfig.TrainConfig.pretrained_weights = {weights!r}\n")
    return HEAD + "\n".join(sorted(imports)) + "\n\n" + "\n".join(blocks)


def _within(value: Any) -> Iterator[_Scoped]:
    """A scoped dataclass and those within it."""
    if isinstance(value, tuple):
        for each in value:
            yield from _within(each)
    elif isinstance(value, _Scoped):
        yield value
        yield from _within(tuple(value.fields().values()))


def _block(of: _Scoped) -> str:
    lines = [f"  {name} = {_text(value)}\n" for name, value in of.fields().items()]
    return f"{of.selector}:\n{''.join(lines)}" if lines else ""


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        inner = [_text(each) for each in value]
        return f"({inner[0]},)" if len(inner) == 1 else f"({', '.join(inner)})"
    return f"@{value.selector}()" if isinstance(value, _Scoped) else repr(value)


def _module(kind: type) -> str:
    """The file that gin files name it by: `architectures` has most."""
    return "architectures" if hasattr(architectures, kind.__name__) else kind.__module__.rpartition(".")[2]


def _import(kind: type) -> str:
    return f"from {kind.__module__.partition('.')[0]} import {_module(kind)}"
