"""Published architectures whose config.json is a table of keys."""

from collections.abc import Callable, Mapping
from typing import Any

from mmjax.weights.published.key_table import Table, Values, read_table, write_table
from mmjax.weights.published.rules import Config, PublishedArchitecture, Rules, require_round_trip


def with_defaults(defaults: Mapping[str, Any]) -> Callable[[Values], Values]:
    """Makes a function that adds the values of keys that files leave out."""
    return lambda values: {**defaults, **values}


def table_architecture(
    name: str,
    model_types: tuple[str, ...],
    types: Mapping[str, type],
    table: Table,
    *,
    rules: Callable[[Config], Rules],
    prepare: Callable[[Values], Values] = lambda values: values,
    require_same: Callable[[Config, Config], None] = require_round_trip,
    **others: Any,
) -> PublishedArchitecture:
    """Makes the architecture of a table, which refuses a configuration that changes when it is read back.

    Args:
        name: As in PublishedArchitecture.
        model_types: As in PublishedArchitecture.
        types: Type of the configuration, by "", and types of the configurations within it, by their paths.
        table: The keys of its config.json.
        rules: As in PublishedArchitecture.
        prepare: Completes the contents of a config.json, by defaults or by the names of keys in earlier files.
        require_same: Raises ValueError if a configuration and the configuration that is read back differ.
        **others: Other attributes of PublishedArchitecture.
    """

    def read_config(values: Values) -> Config:
        return read_table(table, prepare(values), types)

    def write_config(config: Config) -> dict[str, Any]:
        values = write_table(table, config)
        require_same(config, read_config(values))
        return values

    return PublishedArchitecture(
        name=name,
        model_types=model_types,
        config_type=types[""],
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        **others,
    )
