"""A cluster as a gin file, as `configs/hardware/` has them: `python -m mmjax.plan --cluster=FILE` reads it."""

import dataclasses
from typing import Any

from configs import clusters, cost_effects, device_generations
from configs.clusters import ClusterConfig

_MODULES = {
    module.__name__: module.__name__.rpartition(".")[2] for module in (clusters, cost_effects, device_generations)
}


def cluster_gin(cluster: ClusterConfig) -> str:
    """The gin text that binds a cluster, with every field of the records in it."""
    blocks: list[str] = []
    _bind(cluster, "", blocks)
    imports = "\n".join(f"from configs import {name}" for name in sorted(_MODULES.values()))
    return f"from __gin__ import dynamic_registration\n\n{imports}\n\n" + "\n\n".join(blocks) + "\n"


def _bind(record: Any, scope: str, blocks: list[str]) -> str:
    """Appends the bindings of a record and of the records in it; returns the reference to it."""
    kind = type(record)
    selector = f"{_MODULES[kind.__module__]}.{kind.__name__}"
    position = len(blocks)
    fields = [
        f"  {field.name} = {_value(getattr(record, field.name), f'{scope}{field.name}/', blocks)}"
        for field in dataclasses.fields(record)
    ]
    blocks.insert(position, "\n".join([f"{scope}{selector}:", *fields]))
    return f"@{scope}{selector}()"


def _value(value: Any, scope: str, blocks: list[str]) -> str:
    if dataclasses.is_dataclass(value):
        return _bind(value, scope, blocks)
    if isinstance(value, tuple):
        items = [_value(item, f"{scope[:-1]}_{number}/", blocks) for number, item in enumerate(value)]
        return f"({', '.join(items)}{',' * (len(items) == 1)})"
    return repr(value)
