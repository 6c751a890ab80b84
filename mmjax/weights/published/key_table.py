"""Tables of the keys of a config.json, each read in both directions: to fields of a configuration, and back.

A field is named by its path: `experts.router.normalise` is a field of the router of a configuration's experts. Entries
are read and written in their order; where two write one key, the later value counts, at the earlier's place.
`table_architecture.py` makes a published architecture of a table.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from mmjax.weights.published.config_values import require_values

Values = Mapping[str, Any]
"""Contents of a config.json."""

_REQUIRED = object()


@runtime_checkable
class Entry(Protocol):
    """An entry of a table: some keys, with their conversions to fields and back."""

    @property
    def read(self) -> Callable[[Values], dict[str, Any]]:
        """Returns fields by their paths. Raises ValueError where a key has a value that cannot be computed."""
        ...

    @property
    def write(self) -> Callable[[Any], dict[str, Any]]:
        """Returns the keys that `read` reads. Raises ValueError where the architecture cannot compute a field."""
        ...


def _same(value: Any) -> Any:
    return value


@dataclasses.dataclass(frozen=True)
class Key:
    """An entry of a key that corresponds to one field.

    Attributes:
        key: The key.
        field: Path of the field.
        default: The value of files that leave the key out; without a default, files must have the key.
        to_field: Converts the value to the field.
        to_value: Converts the field to the value.
    """

    key: str
    field: str
    default: Any = _REQUIRED
    to_field: Callable[[Any], Any] = _same
    to_value: Callable[[Any], Any] = _same

    def read(self, values: Values) -> dict[str, Any]:
        """Returns the field."""
        value = values[self.key] if self.default is _REQUIRED else values.get(self.key, self.default)
        return {self.field: self.to_field(value)}

    def write(self, config: Any) -> dict[str, Any]:
        """Returns the key."""
        return {self.key: self.to_value(field_of(config, self.field))}


@dataclasses.dataclass(frozen=True)
class EqualKeys:
    """Several keys whose equal values correspond to one field.

    Attributes:
        keys: The keys.
        field: Path of the field.
        default: The value of files that leave a key out; without a default, files must have the keys.
    """

    keys: tuple[str, ...]
    field: str
    default: Any = _REQUIRED

    def read(self, values: Values) -> dict[str, Any]:
        """Returns the field. Raises ValueError for keys that have different values."""
        found = {key: values[key] if self.default is _REQUIRED else values.get(key, self.default) for key in self.keys}
        first = found[self.keys[0]]
        if any(value != first for value in found.values()):
            named = " and ".join(f"{key} is {value}" for key, value in found.items())
            raise ValueError(f"{named}; only equal ones can be computed")
        return {self.field: first}

    def write(self, config: Any) -> dict[str, Any]:
        """Returns the keys."""
        return dict.fromkeys(self.keys, field_of(config, self.field))


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
        """Returns no field."""
        require_values(values, {self.key: self.value})
        return {}

    def write(self, config: Any) -> dict[str, Any]:
        """Returns the key, if it is written."""
        del config
        return {self.key: self.value} if self.written else {}


@dataclasses.dataclass(frozen=True)
class Unsupported:
    """A key that is false, null or left out in all files that can be computed.

    Attributes:
        key: The key.
        supported: Text after the key in an error message, which says what is supported.
        written: Whether it is written, as False.
    """

    key: str
    supported: str
    written: bool = False

    def read(self, values: Values) -> dict[str, Any]:
        """Returns no field."""
        if values.get(self.key):
            raise ValueError(f"{self.key} is true{self.supported}")
        return {}

    def write(self, config: Any) -> dict[str, Any]:
        """Returns the key, if it is written."""
        del config
        return {self.key: False} if self.written else {}


def _nothing(_: Any) -> dict[str, Any]:
    return {}


@dataclasses.dataclass(frozen=True)
class Keys:
    """An entry of keys and fields that do not correspond one to one: a function and its inverse.

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
        """Returns the fields."""
        del values
        return dict(self.values)

    def write(self, config: Any) -> dict[str, Any]:
        """Returns no key; reading the written keys back finds a configuration with other values."""
        del config
        return {}


@dataclasses.dataclass(frozen=True)
class Nested:
    """Entries of the keys of an object within a config.json.

    Attributes:
        key: Key of the object.
        table: The entries.
    """

    key: str
    table: tuple[Entry, ...]

    def read(self, values: Values) -> dict[str, Any]:
        """Returns the fields. Raises ValueError, which names the key within the object, as the entries do."""
        try:
            return read_fields(self.table, values[self.key])
        except ValueError as error:
            raise ValueError(f"{self.key}.{error}") from error

    def write(self, config: Any) -> dict[str, Any]:
        """Returns the object."""
        return {self.key: write_table(self.table, config)}


Table = tuple[Entry, ...]


def read_fields(table: Table, values: Values) -> dict[str, Any]:
    """Reads fields by their paths. Raises ValueError and KeyError as `read_table`."""
    return {path: value for entry in table for path, value in entry.read(values).items()}


def read_table(table: Table, values: Values, types: Mapping[str, type]) -> Any:
    """Reads the configuration that a config.json describes.

    Args:
        table: Its keys.
        values: Contents of config.json.
        types: Type of the configuration, by "", and types of the configurations within it, by their paths.

    Raises:
        ValueError: A key has a value that cannot be computed.
        KeyError: A key is missing.
    """
    fields = read_fields(table, values)
    for prefix in sorted(types, key=len, reverse=True):
        inner = {path: value for path, value in fields.items() if path.rpartition(".")[0] == prefix}
        if inner:
            fields = {path: value for path, value in fields.items() if path not in inner}
            fields[prefix] = types[prefix](**{path.rpartition(".")[2]: value for path, value in inner.items()})
    return fields[""]


def write_table(table: Table, config: Any) -> dict[str, Any]:
    """Writes the keys of a configuration. Raises ValueError where the published architecture cannot compute it."""
    return {key: value for entry in table for key, value in entry.write(config).items()}


def field_of(config: Any, path: str) -> Any:
    """Returns the field of a configuration at a path."""
    for name in path.split("."):
        config = getattr(config, name)
    return config
