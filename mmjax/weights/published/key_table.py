"""Tables of the keys of a config.json, each read in both directions: to fields of a configuration, and back.

A field is named by its path: `experts.router.normalise` is a field of the router of a configuration's experts. Entries
are read and written in their order; where two write one key, the later value counts, at the earlier's place.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from mmjax.weights.published.config_values import require_values

Values = Mapping[str, Any]
"""Contents of a config.json."""

_REQUIRED = object()


class Entry(Protocol):
    """Some keys of a table."""

    @property
    def read(self) -> Callable[[Values], dict[str, Any]]:
        """Gives fields by their paths. Raises ValueError where a key has a value that cannot be computed."""
        ...

    @property
    def write(self) -> Callable[[Any], dict[str, Any]]:
        """Gives the keys that `read` reads. Raises ValueError where the architecture cannot compute a field."""
        ...


def _same(value: Any) -> Any:
    return value


@dataclasses.dataclass(frozen=True)
class Key:
    """A key that is one field.

    Attributes:
        key: The key.
        field: Path of the field.
        default: The value of files that leave the key out; without one they must have it.
        to_field: Makes the field of the value.
        to_value: Makes the value of the field.
    """

    key: str
    field: str
    default: Any = _REQUIRED
    to_field: Callable[[Any], Any] = _same
    to_value: Callable[[Any], Any] = _same

    def read(self, values: Values) -> dict[str, Any]:
        """The field."""
        value = values[self.key] if self.default is _REQUIRED else values.get(self.key, self.default)
        return {self.field: self.to_field(value)}

    def write(self, config: Any) -> dict[str, Any]:
        """The key."""
        return {self.key: self.to_value(field_of(config, self.field))}


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A key with the only value that can be computed, which files may leave out.

    Attributes:
        key: The key.
        value: The value.
        written: Whether it is written.
    """

    key: str
    value: Any
    written: bool = False

    def read(self, values: Values) -> dict[str, Any]:
        """No field."""
        require_values(values, {self.key: self.value})
        return {}

    def write(self, config: Any) -> dict[str, Any]:
        """The key, if it is written."""
        del config
        return {self.key: self.value} if self.written else {}


@dataclasses.dataclass(frozen=True)
class Unsupported:
    """A key that is false, null or left out in all files that can be computed.

    Attributes:
        key: The key.
        supported: What an error says after the key: what is supported.
        written: Whether it is written, as False.
    """

    key: str
    supported: str
    written: bool = False

    def read(self, values: Values) -> dict[str, Any]:
        """No field."""
        if values.get(self.key):
            raise ValueError(f"{self.key} is true{self.supported}")
        return {}

    def write(self, config: Any) -> dict[str, Any]:
        """The key, if it is written."""
        del config
        return {self.key: False} if self.written else {}


def _nothing(_: Any) -> dict[str, Any]:
    return {}


@dataclasses.dataclass(frozen=True)
class Keys:
    """Keys and fields that do not correspond one to one: a function and its inverse.

    Attributes:
        read: Fields that the contents of a config.json describe; by default none.
        write: Keys of a configuration; by default none.
    """

    read: Callable[[Values], dict[str, Any]] = _nothing
    write: Callable[[Any], dict[str, Any]] = _nothing


@dataclasses.dataclass(frozen=True)
class Fields:
    """Fields that no key describes, because the published architecture always has these values."""

    values: Mapping[str, Any]

    def read(self, values: Values) -> dict[str, Any]:
        """The fields."""
        del values
        return dict(self.values)

    def write(self, config: Any) -> dict[str, Any]:
        """No key; a configuration with other values is found when what was written is read back."""
        del config
        return {}


Table = tuple[Entry, ...]


def read_table(table: Table, values: Values, types: Mapping[str, type]) -> Any:
    """The configuration that a config.json describes.

    Args:
        table: Its keys.
        values: Contents of config.json.
        types: Type of the configuration, by "", and of those in it, by their paths.

    Raises:
        ValueError: A key has a value that cannot be computed.
        KeyError: A key is missing.
    """
    fields = {path: value for entry in table for path, value in entry.read(values).items()}
    for prefix in sorted(types, key=len, reverse=True):
        inner = {path: value for path, value in fields.items() if path.rpartition(".")[0] == prefix}
        if inner:
            fields = {path: value for path, value in fields.items() if path not in inner}
            fields[prefix] = types[prefix](**{path.rpartition(".")[2]: value for path, value in inner.items()})
    return fields[""]


def write_table(table: Table, config: Any) -> dict[str, Any]:
    """The keys of a configuration. Raises ValueError where the published architecture cannot compute it."""
    return {key: value for entry in table for key, value in entry.write(config).items()}


def field_of(config: Any, path: str) -> Any:
    """The field of a configuration at a path."""
    for name in path.split("."):
        config = getattr(config, name)
    return config
